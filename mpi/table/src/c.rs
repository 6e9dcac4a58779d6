//! What a C compiler and a linker are given: the header, the aliases, the version script.

use crate::{Constant, Export, Face, c_type, constants, functions, handle_type};
use std::fmt::Write;
use std::path::Path;

/// Types of functions that programs give.
const CALLBACKS: &str = "\
typedef void MPI_User_function(void *invec, void *inoutvec, int *len, MPI_Datatype *datatype);
typedef void MPI_User_function_c(void *invec, void *inoutvec, MPI_Count *len, MPI_Datatype *datatype);
typedef int MPI_Grequest_query_function(void *extra_state, MPI_Status *status);
typedef int MPI_Grequest_free_function(void *extra_state);
typedef int MPI_Grequest_cancel_function(void *extra_state, int complete);
typedef int MPI_Comm_copy_attr_function(MPI_Comm oldcomm, int keyval, void *extra_state, void *value_in, void *value_out, int *flag);
typedef int MPI_Comm_delete_attr_function(MPI_Comm comm, int keyval, void *value, void *extra_state);
typedef MPI_Comm_copy_attr_function MPI_Copy_function;
typedef MPI_Comm_delete_attr_function MPI_Delete_function;
typedef int MPI_Type_copy_attr_function(MPI_Datatype oldtype, int keyval, void *extra_state, void *value_in, void *value_out, int *flag);
typedef int MPI_Type_delete_attr_function(MPI_Datatype datatype, int keyval, void *value, void *extra_state);
typedef int MPI_Win_copy_attr_function(MPI_Win oldwin, int keyval, void *extra_state, void *value_in, void *value_out, int *flag);
typedef int MPI_Win_delete_attr_function(MPI_Win win, int keyval, void *value, void *extra_state);
typedef int MPI_Datarep_extent_function(MPI_Datatype datatype, MPI_Aint *extent, void *extra_state);
typedef int MPI_Datarep_conversion_function(void *userbuf, MPI_Datatype datatype, int count, void *filebuf, MPI_Offset position, void *extra_state);
typedef int MPI_Datarep_conversion_function_c(void *userbuf, MPI_Datatype datatype, MPI_Count count, void *filebuf, MPI_Offset position, void *extra_state);
typedef void MPI_Comm_errhandler_function(MPI_Comm *comm, int *error_code, ...);
typedef void MPI_File_errhandler_function(MPI_File *file, int *error_code, ...);
typedef void MPI_Win_errhandler_function(MPI_Win *win, int *error_code, ...);
typedef void MPI_Session_errhandler_function(MPI_Session *session, int *error_code, ...);
typedef void MPI_T_event_cb_function(MPI_T_event_instance event_instance, MPI_T_event_registration event_registration, MPI_T_cb_safety cb_safety, void *user_data);
typedef void MPI_T_event_free_cb_function(MPI_T_event_registration event_registration, MPI_T_cb_safety cb_safety, void *user_data);
typedef void MPI_T_event_dropped_cb_function(MPI_Count count, MPI_T_event_registration event_registration, int source_index, MPI_T_cb_safety cb_safety, void *user_data);
";

/// Handles: the type in C, and the tag of the struct that it points to.
const HANDLES: &[&str] = &[
    "Op",
    "Comm",
    "Group",
    "Win",
    "File",
    "Session",
    "Message",
    "Info",
    "Errhandler",
    "Request",
    "Datatype",
];

/// Handles of tools.
const TOOLS: &[&str] =
    &["enum", "cvar_handle", "pvar_handle", "pvar_session", "event_registration", "event_instance"];

/// The header of the standard ABI, `mpi.h`.
#[must_use]
pub fn header() -> String {
    let mut out = String::from(
        "/* The standard ABI of MPI 5.0, as Gapless has it. Made from functions.txt and constants.txt. */\n\
         #ifndef GAPLESS_MPI_H\n#define GAPLESS_MPI_H\n\n#include <stdint.h>\n\n\
         #ifdef __cplusplus\nextern \"C\" {\n#endif\n\n\
         typedef intptr_t MPI_Aint;\ntypedef int64_t MPI_Offset;\ntypedef int64_t MPI_Count;\n\
         typedef struct {\n    int MPI_SOURCE;\n    int MPI_TAG;\n    int MPI_ERROR;\n    int MPI_internal[5];\n} MPI_Status;\n\n",
    );
    for name in HANDLES {
        let _ = writeln!(out, "typedef struct MPI_ABI_{name} *MPI_{name};");
    }
    for name in TOOLS {
        let _ = writeln!(out, "typedef struct MPI_T_{name}_t *MPI_T_{name};");
    }
    out.push_str("typedef int MPI_T_cb_safety;\ntypedef int MPI_T_source_order;\n\n");
    out.push_str(CALLBACKS);
    out.push('\n');
    for constant in constants() {
        let _ = writeln!(out, "#define MPI_{} {}", constant.name, c_value(&constant));
    }
    for prefix in ["MPI_", "PMPI_"] {
        out.push('\n');
        for function in functions() {
            for export in function.exports() {
                let _ = writeln!(out, "{}", prototype(prefix, &export));
            }
        }
    }
    out.push_str(&fortran());
    out.push_str("\n/* Not MPI's: whether buffers may lie in memory of CUDA devices. */\n");
    out.push_str("int MPIX_Query_cuda_support(void);\n");
    out.push_str("\n#ifdef __cplusplus\n}\n#endif\n\n#endif\n");
    out
}

/// Conversions between handles of C and of Fortran. The standard's header leaves them to libraries for Fortran; programs in
/// C use them all the same. They are the functions for integers, so that such a program runs on any library of the ABI.
fn fortran() -> String {
    let mut out = String::from("\ntypedef int MPI_Fint;\n");
    for function in functions() {
        let Some(handle) = function.name.strip_suffix("_toint") else { continue };
        for prefix in ["MPI_", "PMPI_"] {
            for (name, is) in [("c2f", "toint"), ("f2c", "fromint")] {
                let _ = writeln!(out, "#define {prefix}{handle}_{name} {prefix}{handle}_{is}");
            }
        }
    }
    out.push_str(
        "#define MPI_Status_c2f(c_status, f_status) (*(MPI_Status *)(f_status) = *(c_status), MPI_SUCCESS)\n\
         #define MPI_Status_f2c(f_status, c_status) (*(c_status) = *(const MPI_Status *)(f_status), MPI_SUCCESS)\n",
    );
    out
}

fn c_value(constant: &Constant) -> String {
    let value = constant.value(Face::Abi);
    let kind = constant.kind;
    if let Some(other) = constant.alias() {
        return format!("MPI_{other}");
    }
    if let Some(handle) = handle_type(kind) {
        return format!("(({handle}){value})");
    }
    let cast = match (constant.name, kind) {
        (_, "int") => {
            return if value.starts_with('-') { format!("({value})") } else { value.to_owned() };
        }
        (_, "offset") => "MPI_Offset".to_owned(),
        ("ARGV_NULL", _) => "char **".to_owned(),
        ("ARGVS_NULL", _) => "char ***".to_owned(),
        ("ERRCODES_IGNORE" | "UNWEIGHTED" | "WEIGHTS_EMPTY", _) => "int *".to_owned(),
        ("STATUS_IGNORE" | "STATUSES_IGNORE", _) => "MPI_Status *".to_owned(),
        (_, "address") => "void *".to_owned(),
        (_, kind) => match kind.split_once('=') {
            Some(("fn*", name)) => format!("{name} *"),
            Some((_, name)) => name.to_owned(),
            None => panic!("constants.txt has a kind that is not known: {kind}"),
        },
    };
    format!("(({cast}){value})")
}

fn prototype(prefix: &str, export: &Export<'_>) -> String {
    let argument = |(name, kind): &(&str, &str)| c_type(kind, export.large).replace('@', name);
    let mut arguments: Vec<String> = export.arguments().iter().map(argument).collect();
    if arguments.is_empty() {
        arguments.push("void".to_owned());
    }
    let result = export.function.result.unwrap_or("int");
    format!("{result} {prefix}{}({});", export.name, arguments.join(", "))
}

/// What MPICH's header has as variables.
const MPICH_VARIABLES: [&str; 3] = ["UNWEIGHTED", "WEIGHTS_EMPTY", "T_PVAR_ALL_HANDLES"];

/// Assembler that defines each `MPI_X` weakly, as a jump to `PMPI_X`: a profiling library, or a program, may define it.
#[must_use]
pub fn aliases(face: Face) -> String {
    let mut out = String::from("\t.text\n");
    for function in functions() {
        for export in function.exports() {
            let name = &export.name;
            let jump = if cfg!(target_arch = "aarch64") { "b" } else { "jmp" };
            let _ = writeln!(
                out,
                "\t.weak MPI_{name}\n\t.type MPI_{name}, %function\nMPI_{name}:\n\t{jump} PMPI_{name}\n\t.size MPI_{name}, .-MPI_{name}"
            );
        }
    }
    if face == Face::Mpich {
        out.push_str("\t.section .rodata\n\t.balign 8\n");
        for constant in constants() {
            if MPICH_VARIABLES.contains(&constant.name) {
                let (name, value) = (constant.name, constant.value(face));
                let _ = writeln!(
                    out,
                    "\t.global MPI_{name}\n\t.type MPI_{name}, %object\n\t.size MPI_{name}, 8\nMPI_{name}:\n\t.quad {value}"
                );
            }
        }
    }
    out.push_str("\t.section .note.GNU-stack,\"\",%progbits\n");
    out
}

/// What a library exports: functions of MPI, and nothing else.
#[must_use]
pub fn version_script() -> String {
    "{ global: MPI_*; PMPI_*; MPIX_*; MPIR_Dup_fn; local: *; };\n".to_owned()
}

/// Arguments of the system's compiler that link a library of an archive, which comes after them: `cc @FILE`. The aliases
/// and the script are in `folder`.
#[must_use]
pub fn link_arguments(folder: &Path, face: Face) -> String {
    let [aliases, script] =
        ["aliases.s", "exports.map"].map(|name| folder.join(name).display().to_string());
    // No alias names these: nothing else would take them out of the archive.
    let wanted = match face {
        Face::Abi => "-Wl,-u,MPIX_Query_cuda_support\n",
        Face::Mpich => "-Wl,-u,MPIX_Query_cuda_support,-u,MPIR_Dup_fn\n",
    };
    // Functions of the library call each other, not what a program puts in their places. Threads outlive a `dlclose`.
    format!(
        "-shared\n\"{aliases}\"\n\"-Wl,--version-script,{script}\"\n\
         -Wl,-Bsymbolic-functions,--gc-sections,-z,nodelete,-z,defs\n{wanted}"
    )
}
