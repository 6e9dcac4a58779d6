//! Programs of a process: each is made once for a context and device, and built from source once for a device.
//!
//! Devices of one context (one for each queue) share a program; each has kernel objects of its own, as arguments are
//! set on these. For another context of the same device a program is made of the binary that the driver gave for the
//! first one, which takes no compiler.
//!
//! Not so on the host's processor. Options differ from device to device there (`apart.rs`), so two that are open at a
//! time share nothing. And no binary is asked for: PoCL compiles every kernel of a program for it (4.3 s of a processor
//! for one of ours), while it finds a source that it has seen in its cache on disk (30 ms; a binary takes 8).

use crate::OpenClError;
use crate::counts;
use crate::sys::{self, Context, ProgramHandle};
use opencl3::types::cl_device_id;
use std::collections::VecDeque;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Bytes of binaries and their sources that are kept; the oldest go first.
const KEPT: usize = 64 << 20;

/// What a binary was built of.
#[derive(PartialEq, Eq)]
struct Recipe {
    device: u64,
    source: String,
    options: Box<CStr>,
}

#[derive(Default)]
struct Known {
    /// Programs that live, by their contexts. A program holds its context, so a context's number is not another's.
    live: Vec<(u64, Arc<Recipe>, Weak<ProgramHandle>)>,
    binaries: VecDeque<(Arc<Recipe>, Arc<[u8]>)>,
    bytes: usize,
}

static KNOWN: Mutex<Known> =
    Mutex::new(Known { live: Vec::new(), binaries: VecDeque::new(), bytes: 0 });

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Known {
    fn program(&self, context: u64, recipe: &Recipe) -> Option<Arc<ProgramHandle>> {
        let same =
            |one: &&(u64, Arc<Recipe>, Weak<ProgramHandle>)| one.0 == context && *one.1 == *recipe;
        self.live.iter().filter(same).find_map(|(_, _, program)| program.upgrade())
    }

    fn binary(&self, recipe: &Recipe) -> Option<Arc<[u8]>> {
        let found = self.binaries.iter().find(|(of, _)| **of == *recipe);
        found.map(|(_, binary)| Arc::clone(binary))
    }

    fn keep(&mut self, context: u64, recipe: &Arc<Recipe>, program: &Arc<ProgramHandle>) {
        self.live.retain(|(_, _, program)| program.strong_count() > 0);
        self.live.push((context, Arc::clone(recipe), Arc::downgrade(program)));
    }

    fn keep_binary(&mut self, recipe: Arc<Recipe>, binary: Vec<u8>) {
        let bytes = |recipe: &Recipe, binary: &[u8]| recipe.source.len() + binary.len();
        self.bytes += bytes(&recipe, &binary);
        self.binaries.push_back((recipe, binary.into()));
        while self.bytes > KEPT
            && let Some((recipe, binary)) = self.binaries.pop_front()
        {
            self.bytes -= bytes(&recipe, &binary);
        }
    }

    fn forget_binary(&mut self, recipe: &Recipe) {
        if let Some(at) = self.binaries.iter().position(|(of, _)| **of == *recipe)
            && let Some((recipe, binary)) = self.binaries.remove(at)
        {
            self.bytes -= recipe.source.len() + binary.len();
        }
    }
}

/// The program of a source for a device of a context; `name` is the device's, for errors. Its binary is kept if so
/// told.
pub(crate) fn prepared(
    (context, device): (&Context, cl_device_id),
    (name, keeps_binaries): (&str, bool),
    source: &str,
    options: &CStr,
) -> Result<Arc<ProgramHandle>, OpenClError> {
    let recipe =
        Recipe { device: sys::number(device), source: source.to_owned(), options: options.into() };
    let number = sys::number(context.raw());
    // Drivers are called without the lock; two devices that want one program at once may make two.
    let (live, binary) = {
        let known = known();
        (known.program(number, &recipe), known.binary(&recipe))
    };
    if let Some(program) = live {
        return Ok(program);
    }
    // A driver may refuse what it gave, after an update of its cache, say.
    let load = |binary: Arc<[u8]>| ProgramHandle::load(context, device, &binary, options).ok();
    let loaded = binary.and_then(load);
    let recipe = Arc::new(recipe);
    let program = match loaded {
        Some(program) => {
            counts::from_binary();
            Arc::new(program)
        }
        None => {
            let program = ProgramHandle::build(context, device, name, source, options)?;
            let binary = if keeps_binaries { program.binary(device) } else { None };
            let mut known = known();
            known.forget_binary(&recipe);
            if let Some(binary) = binary {
                known.keep_binary(Arc::clone(&recipe), binary);
            }
            Arc::new(program)
        }
    };
    known().keep(number, &recipe, &program);
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::counts;
    use crate::detect;

    #[test]
    fn a_program_is_built_once_for_a_device_and_made_once_for_a_context() {
        let info = match detect() {
            Ok(found) => found.into_iter().next().unwrap(),
            Err(why) => return gapless_testkit::skip("programs of binaries", &why.to_string()),
        };
        let source = "__kernel void nothing_much(__global int *a) { a[get_global_id(0)] += 1; }";
        let [one, other] = [(); 2].map(|()| Context::create(info.raw()).unwrap());
        let make = |context: &Context, options: &CStr| {
            prepared((context, info.raw()), ("it", true), source, options).unwrap()
        };
        let first = make(&one, c"");
        assert!(Arc::ptr_eq(&first, &make(&one, c"")), "it lives");
        assert!(!Arc::ptr_eq(&first, &make(&one, c"-D OTHER")), "of other options");
        let before = counts().from_binaries;
        let second = make(&other, c"");
        assert_eq!(counts().from_binaries, before + 1);
        assert_eq!(second.kernel(c"nothing_much").unwrap().parameters().unwrap(), 1);
        drop(first);
        let again = make(&one, c"");
        assert_eq!(counts().from_binaries, before + 2, "it is made again");
        again.kernel(c"nothing_much").unwrap();
    }
}
