use super::*;
use gapless_dtype::{Contents, Datatype, Distribution, Order, Primitive};

fn read(text: &str) -> Result<Vec<Case>, TextError> {
    parse(text, Path::new("own.toml"))
}

/// The datatype of `[layout]` with this line in it.
fn typed(line: &str) -> Datatype {
    let cases = read(&format!("[layout]\n{line}\n")).unwrap();
    cases[0].send.datatype.clone()
}

fn double() -> Datatype {
    Primitive::Double.into()
}

/// A thread of tests has 2 MiB of stack.
#[test]
fn what_nests_deep_is_refused_also_behind_an_error() {
    for open in ["[", "{a=", "{a=["] {
        let lost = format!("[layout]\nx = {{{}a={}", "{}".repeat(3000), open.repeat(3000));
        for text in [lost, format!("[layout]\nx = {}", open.repeat(81))] {
            let fault = read(&text).unwrap_err().fault;
            assert!(matches!(*fault, TextFault::Syntax(_)), "{fault:?}");
        }
    }
}

#[test]
fn every_constructor_is_called() {
    use Datatype as D;
    let [block, cyclic] = [Distribution::Block, Distribution::Cyclic];
    let pairs = [
        ("contiguous = { count = 3, of = 'double' }", D::contiguous(3, &double())),
        (
            "vector = { count = 3, blocklength = 2, stride = -5, of = 'f64' }",
            D::vector(3, 2, -5, &double()),
        ),
        (
            "hvector = { count = 3, blocklength = 2, stride_bytes = 50, of = 'MPI_DOUBLE' }",
            D::hvector(3, 2, 50, &double()),
        ),
        (
            "indexed = { blocklengths = [1, 2], displacements = [7, 0], of = 'double' }",
            D::indexed(&[1, 2], &[7, 0], &double()),
        ),
        (
            "hindexed = { blocklengths = [1, 2], displacements_bytes = [-70, 0], of = 'double' }",
            D::hindexed(&[1, 2], &[-70, 0], &double()),
        ),
        (
            "indexed_block = { blocklength = 2, displacements = [7, 0], of = 'double' }",
            D::indexed_block(2, &[7, 0], &double()),
        ),
        (
            "hindexed_block = { blocklength = 2, displacements_bytes = [70, 0], of = 'double' }",
            D::hindexed_block(2, &[70, 0], &double()),
        ),
        (
            "structure = { blocklengths = [1, 3], displacements_bytes = [0, 8], types = ['char', 'Double'] }",
            D::structure(&[1, 3], &[0, 8], &[Primitive::Char.into(), double()]),
        ),
        (
            "subarray = { sizes = [4, 5], subsizes = [2, 3], starts = [1, 2], order = 'fortran', of = 'double' }",
            D::subarray(&[4, 5], &[2, 3], &[1, 2], Order::Fortran, &double()),
        ),
        (
            "subarray = { sizes = [4, 5], starts = [1, 2], of = 'double' }",
            D::subarray(&[4, 5], &[3, 3], &[1, 2], Order::C, &double()),
        ),
        (
            "darray = { gsizes = [8, 9], psizes = [2, 2], rank = 1, distribs = ['block', 'cyclic'], \
             dargs = ['default', 2], of = 'double' }",
            D::darray(
                4,
                1,
                &[8, 9],
                &[block, cyclic],
                &[None, Some(2)],
                &[2, 2],
                Order::C,
                &double(),
            ),
        ),
        ("resized = { lb = -8, extent = 32, of = 'double' }", D::resized(-8, 32, &double())),
        ("dup = { of = 'double' }", double().dup()),
        ("type = 'double'", Ok(double())),
    ];
    for (text, made) in pairs {
        assert!(typed(text).same_structure(&made.unwrap()), "{text}");
    }
}

#[test]
fn every_primitive_has_its_names() {
    for primitive in Primitive::ALL {
        let plain = primitive.name().split_once('_').unwrap().1.to_ascii_lowercase();
        for name in [primitive.name(), &plain] {
            let found = typed(&format!("type = '{name}'"));
            assert!(
                matches!(found.contents(), Contents::Primitive(it) if it == primitive),
                "{name}"
            );
        }
    }
}

#[test]
fn a_tree_can_be_written_from_named_types_in_any_order() {
    let text = "
        [layout]
        name = 'halo'
        count = 2
        structure = { blocklengths = [1, 2], displacements_bytes = [0, 4096], types = [
            'face', { contiguous = { count = 2, of = 'int' } } ] }
        [types.face]
        vector = { count = 4, blocklength = 1, stride = 8, of = 'cell' }
        [types.cell.contiguous]
        count = 3
        of = 'double'
    ";
    let cell = Datatype::contiguous(3, &double()).unwrap();
    let face = Datatype::vector(4, 1, 8, &cell).unwrap();
    let pair = Datatype::contiguous(2, &Primitive::Int.into()).unwrap();
    let whole = Datatype::structure(&[1, 2], &[0, 4096], &[face, pair]).unwrap();
    let [case] = &read(text).unwrap()[..] else { panic!() };
    assert!(case.send.datatype.same_structure(&whole));
    assert_eq!((case.name.as_str(), case.send.count), ("halo", 2));
    assert_eq!(case.payload_bytes, 2 * whole.size());
    assert_eq!(case.family, Family::Own);
}

#[test]
fn several_messages_and_other_layouts_at_the_receiver() {
    let text = "
        [[layout]]
        vector = { count = 4, blocklength = 1, stride = -3, of = 'double' }
        receive = { type = 'double', count = 4 }
        [[layout]]
        name = 'second'
        type = 'byte'
        count = 100
    ";
    let [one, two] = &read(text).unwrap()[..] else { panic!() };
    assert_eq!((one.name.as_str(), two.name.as_str()), ("own 1", "second"));
    assert_eq!((one.recv.count, one.recv.origin, one.recv.buffer_bytes), (4, 0, 32));
    // Three strides below displacement 0.
    assert_eq!((one.send.origin, one.send.buffer_bytes), (72, 80));
    assert_eq!((two.send.count, two.payload_bytes), (100, 100));
}

#[test]
fn what_is_wrong_is_named_with_its_line() {
    let deep = |levels: usize| {
        let types: String =
            (1..levels).map(|i| format!("[types.t{i}]\ndup = {{ of = 't{}' }}\n", i + 1)).collect();
        format!("[layout]\ntype = 't1'\n{types}[types.t{levels}]\ntype = 'int'\n")
    };
    for (text, line, complaint) in [
        ("[layout", 1, "table"),
        ("", 1, "there is no [layout]"),
        (
            "[layout]\ntype = 'int'\n[typs.x]",
            3,
            "a layout file has no \"typs\"; it takes layout, types",
        ),
        ("layout = 3", 1, "layout is 3, not a table"),
        ("types = 3\n[layout]\ntype = 'int'", 1, "types is 3, not a table"),
        ("[layout]\ncount = 3", 2, "layout needs a constructor: contiguous, vector, "),
        ("[layout]\nvektor = {}", 2, "layout has no \"vektor\"; it takes contiguous, vector, "),
        (
            "[layout]\ntype = 'int'\ndup = { of = 'int' }",
            3,
            "layout has two constructors, type and dup",
        ),
        ("[layout]\ndup = 'int'", 2, "dup is \"int\", not a table"),
        ("[layout]\ntype = 7", 2, "type is 7, not a type: a name, or a table with a constructor"),
        ("[layout]\ndup = { of = [] }", 2, "dup.of is of type array, not a type"),
        ("[layout]\n\ncontiguous = { of = 'int' }", 3, "contiguous needs \"count\""),
        (
            "[layout]\ncontiguous = { count = -1, of = 'int' }",
            2,
            "contiguous.count is -1, not a whole number from 0 on",
        ),
        (
            "[layout]\nvector = { count = 1, blocklength = 1, stride = 1.5, of = 'int' }",
            2,
            "vector.stride is of type float, not a whole number",
        ),
        (
            "[layout.indexed]\nblocklengths = [\n1,\n-2]\ndisplacements = [0, 1]\nof = 'int'",
            4,
            "indexed.blocklengths[1] is -2, not a list of whole numbers from 0 on",
        ),
        (
            "[layout]\ndup = { of = 'duble' }",
            2,
            "there is no type \"duble\"; types are char, signed_char, ",
        ),
        (
            "[layout]\ndup = { of = 'x' }\n[types.y]\ntype = 'int'",
            2,
            "there is no type \"x\"; this file has y, and primitive types are char, ",
        ),
        (
            "[types.int]\ndup = { of = 'char' }\n[layout]\ntype = 'int'",
            1,
            "types.int: that is the name of a primitive type",
        ),
        (
            "[layout]\ntype = 'a'\n[types]\na.type = 'b'\nb.type = 'a'",
            4,
            "types.a is made of itself",
        ),
        (
            "[layout]\ntype = 'int'\n[types.unused]\ndup = { of = 'nobody' }",
            4,
            "there is no type \"nobody\"",
        ),
        (
            "[layout]\nsubarray = { sizes = [6], starts = [6], of = 'int' }",
            2,
            "subarray: starts[0] is 6, more than 5",
        ),
        (
            "[layout]\nsubarray = { sizes = [6], order = 'x', of = 'int' }",
            2,
            "subarray.order is \"x\", not \"c\" or \"fortran\"",
        ),
        (
            "[layout]\ndarray = { gsizes = [6], psizes = [2], rank = 0, distribs = ['blok'], of = 'int' }",
            2,
            "darray.distribs[0] is \"blok\", not a list of \"block\", \"cyclic\" and \"none\"",
        ),
        ("[layout]\ncontiguous = { count = 0, of = 'int' }", 2, "layout has no bytes"),
        (
            "[layout]\ntype = 'int'\nreceive = { type = 'double' }",
            3,
            "layout.receive takes 8 bytes, and 4 are sent",
        ),
        (
            "[layout]\ntype = 'int'\nreceive = { type = 'int', name = 'x' }",
            3,
            "layout.receive has no \"name\"",
        ),
        (
            "[layout]\ntype = 'int'\ncount = 1000000000000",
            2,
            "layout reaches over more than 1099511627776 bytes",
        ),
        (&deep(500), 260, "types nest more than 128 deep"),
    ] {
        let error = read(text).unwrap_err();
        let said = error.to_string();
        assert!(said.starts_with("layout file \"own.toml\", line "), "{said}");
        assert!(said.contains(complaint), "{said}\n{text}");
        assert_eq!(error.line, line, "{said}\n{text}");
        assert!(!said.contains('\n'), "{said}");
    }
    assert!(read(&deep(100)).is_ok());
}
