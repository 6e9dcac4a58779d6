//! Derived datatypes are what the compiler laid out, whatever the struct.

use gapless_derive::Datatype;
use gapless_dtype::{
    AnyBits, CheckedBits, Contents, Convertor, Datatype as Tree, Equivalence, Run,
};
use std::marker::PhantomData;
use std::mem::offset_of;

/// Bytes that a value's datatype describes, in packed order.
fn described<T: Equivalence>() -> Vec<(i64, u64)> {
    let mut convertor = Convertor::new(T::layout(), 1).unwrap();
    let mut runs = [Run::default(); 64];
    let (used, _) = convertor.iov(&mut runs, u64::MAX);
    assert_eq!(convertor.remaining(), 0);
    runs[..used].iter().map(|run| (run.displacement, run.len)).collect()
}

/// A field's first byte and its length.
fn at<F>(offset: usize) -> (i64, u64) {
    (i64::try_from(offset).unwrap(), size_of::<F>() as u64)
}

fn any_bits<T: AnyBits>() {}
fn checked<T: CheckedBits>() {}

#[derive(Datatype, Clone, Copy)]
#[datatype(crate = gapless_dtype)]
#[repr(C)]
struct Particle {
    kind: u8,
    position: [f64; 3],
    mass: f32,
}

#[test]
fn padding_is_a_gap() {
    let fields = [
        at::<u8>(offset_of!(Particle, kind)),
        at::<[f64; 3]>(offset_of!(Particle, position)),
        at::<f32>(offset_of!(Particle, mass)),
    ];
    // The last two touch.
    assert_eq!(described::<Particle>(), [fields[0], (fields[1].0, fields[1].1 + fields[2].1)]);
    let datatype = Particle::datatype();
    assert_eq!(datatype.extent(), 40);
    let Contents::Resized { old, .. } = datatype.contents() else { panic!("{datatype:?}") };
    let Contents::Struct { types, .. } = old.contents() else { panic!("{old:?}") };
    assert_eq!(types, [u8::datatype(), types[1].clone(), f32::datatype()]);
    any_bits::<Particle>();
    checked::<Particle>();
}

#[test]
fn structs_nest() {
    #[derive(Datatype)]
    #[datatype(crate = gapless_dtype)]
    #[repr(C)]
    struct Cell {
        id: u32,
        pair: [Particle; 2],
        last: i16,
    }
    let inner = offset_of!(Cell, pair);
    let of_inner = |nth: usize| {
        let start = inner + nth * size_of::<Particle>();
        let position = offset_of!(Particle, position);
        [at::<u8>(start), (i64::try_from(start + position).unwrap(), 28)]
    };
    let [a, b] = [of_inner(0), of_inner(1)];
    assert_eq!(described::<Cell>(), [at::<u32>(0), a[0], a[1], b[0], b[1], at::<i16>(88)]);
    assert_eq!(Cell::layout().extent(), 96);
    any_bits::<Cell>();
}

#[test]
fn the_layout_may_be_packed_or_aligned() {
    #[derive(Datatype)]
    #[datatype(crate = gapless_dtype)]
    #[repr(C, packed)]
    struct Packed {
        a: u8,
        b: f64,
        c: u16,
    }
    assert_eq!(described::<Packed>(), [(0, 11)]);
    assert_eq!(
        (Packed::layout().extent(), offset_of!(Packed, b), offset_of!(Packed, c)),
        (11, 1, 9)
    );
    let one = Packed { a: 1, b: 2.0, c: 3 };
    assert_eq!((one.a, { one.b }, { one.c }), (1, 2.0, 3));

    #[derive(Datatype)]
    #[datatype(crate = gapless_dtype)]
    #[repr(C, align(64))]
    struct Aligned(u8, f32);
    assert_eq!(described::<Aligned>(), [at::<u8>(0), at::<f32>(offset_of!(Aligned, 1))]);
    assert_eq!(Aligned::layout().extent(), 64);
    let Aligned(byte, number) = Aligned(1, 2.0);
    assert_eq!((byte, number), (1, 2.0));

    #[derive(Datatype)]
    #[datatype(crate = gapless_dtype)]
    #[repr(transparent)]
    struct Metres(f64);
    assert_eq!(Metres(1.5).0, 1.5);
    assert_eq!(Metres::layout().signature(), f64::layout().signature());

    #[derive(Datatype)]
    #[datatype(crate = gapless_dtype)]
    #[repr(C)]
    struct Nothing;
    assert_eq!((Nothing::layout().size(), Nothing::layout().extent()), (0, 0));
    any_bits::<Nothing>();
}

#[test]
fn parameters_are_types_and_numbers() {
    #[derive(Datatype)]
    #[datatype(crate = gapless_dtype)]
    #[repr(C)]
    struct Tagged<T, U: 'static, const N: usize>
    where
        T: Copy,
        U: Send + Sync,
    {
        tag: u8,
        values: [T; N],
        unit: PhantomData<U>,
        sure: bool,
    }
    type One = Tagged<f32, String, 2>;
    assert_eq!(described::<One>(), [(0, 1), (4, 9)]);
    assert_eq!(described::<Tagged<u8, String, 3>>(), [(0, 5)]);
    assert!(std::ptr::eq(One::layout(), One::layout()));
    checked::<One>();
    let one = One { tag: 1, values: [1.0, 2.0], unit: PhantomData, sure: true };
    assert!(one.sure && one.values[usize::from(one.tag)] == 2.0 && one.unit == PhantomData);

    #[derive(Datatype)]
    #[datatype(crate = gapless_dtype)]
    #[repr(C)]
    struct Of<T>(T, [T; 2]);
    any_bits::<Of<f64>>();
    checked::<Of<Of<char>>>();
    let Of(a, [b, c]) = Of(1, [2, 3]);
    assert_eq!((a, b, c), (1, 2, 3));
}

#[test]
fn bits_are_looked_at_field_by_field() {
    #[derive(Datatype)]
    #[datatype(crate = gapless_dtype)]
    #[repr(C)]
    struct Flags {
        letter: char,
        alive: [bool; 2],
        count: u16,
        last: bool,
    }
    let mut bytes = [0u8; size_of::<Flags>()];
    assert!(Flags::is_valid(&bytes) && !Flags::is_valid(&bytes[1..]));
    for place in size_of::<char>()..bytes.len() {
        bytes[place] = 2;
        let alive = offset_of!(Flags, alive);
        let due = !(alive..alive + 2).contains(&place) && place != offset_of!(Flags, last);
        assert_eq!(Flags::is_valid(&bytes), due, "byte {place}");
        bytes[place] = 0;
    }
    bytes[..4].copy_from_slice(&0xD800u32.to_ne_bytes());
    assert!(!Flags::is_valid(&bytes));
    let flags = Flags { letter: 'a', alive: [true; 2], count: 1, last: false };
    assert!(flags.letter == 'a' && flags.alive[0] && flags.count == 1 && !flags.last);
}

/// What a user's module calls as ours: the macro takes nothing from there but traits and types.
mod elsewhere {
    pub(crate) use gapless_dtype::{AnyBits, CheckedBits, Datatype, Equivalence, Layout};

    #[allow(dead_code, reason = "nobody calls it: that is the point")]
    pub(crate) mod derived {
        pub(crate) fn field<F>(_: &[u8], _: usize) -> &'static [u8] {
            assert_eq!(size_of::<F>(), 1);
            &[0]
        }
    }
}

#[test]
fn a_path_to_elsewhere_deceives_nobody() {
    #[derive(Datatype)]
    #[datatype(crate = elsewhere)]
    #[repr(C)]
    struct Flag {
        on: bool,
    }
    assert!(Flag::is_valid(&[1]) && !Flag::is_valid(&[2]));
    assert!(Flag { on: true }.on);
}

#[test]
fn what_is_only_sent_has_one_trait() {
    #[derive(Datatype)]
    #[datatype(crate = gapless_dtype, send_only)]
    #[repr(C)]
    struct Index {
        below: u32,
    }
    // Both could be implemented by hand, which would clash with what is derived.
    trait Other {}
    impl<T: AnyBits> Other for T {}
    impl Other for Index {}
    fn other<T: Other>() {}
    other::<Index>();
    assert_eq!(Index { below: 1 }.below, 1);
    assert_eq!(Index::datatype().size(), 4);
}

/// Every order of fields of five sizes: as `offset_of!` has it.
macro_rules! orders {
    ($($name:ident: $a:ty, $b:ty, $c:ty, $d:ty;)*) => {
        #[test]
        fn any_order_of_fields_is_described() {
            $({
                #[derive(Datatype)]
                #[datatype(crate = gapless_dtype)]
                #[repr(C)]
                #[allow(dead_code)]
                struct $name { a: $a, b: $b, c: $c, d: $d }
                let fields = [
                    (offset_of!($name, a), <$a>::datatype()),
                    (offset_of!($name, b), <$b>::datatype()),
                    (offset_of!($name, c), <$c>::datatype()),
                    (offset_of!($name, d), <$d>::datatype()),
                ];
                let mut marked = vec![0u8; size_of::<$name>()];
                for (at, field) in &fields {
                    let layout = field.commit().unwrap();
                    let len = usize::try_from(layout.size()).unwrap();
                    Convertor::new(&layout, 1).unwrap().unpack(&vec![1; len], &mut marked, *at).unwrap();
                }
                let mut derived = vec![0u8; size_of::<$name>()];
                let ones = vec![1; usize::try_from(<$name>::layout().size()).unwrap()];
                Convertor::new(<$name>::layout(), 1).unwrap().unpack(&ones, &mut derived, 0).unwrap();
                assert_eq!(derived, marked);
                let sum: u64 = fields.iter().map(|(_, field): &(usize, Tree)| field.size()).sum();
                assert_eq!(<$name>::layout().size(), sum);
            })*
        }
    };
}

orders! {
    A: u8, u16, f32, f64;
    B: f64, f32, u16, u8;
    C: u8, f64, u8, f64;
    D: [u8; 3], u16, [u16; 3], f64;
    E: bool, char, bool, [bool; 5];
    F: Particle, u8, Particle, u8;
    G: [Particle; 2], [u8; 0], [f64; 0], u8;
    H: f32, PhantomData<u8>, usize, i8;
}
