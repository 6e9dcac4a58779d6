//! What a reduction asks of a lane, and that what is refused asks nothing.

use super::*;
use crate::accelerator::Accelerator;
use crate::config::Config;
use crate::tests::mock::{Mock, Op as Asked};
use gapless_dtype::Datatype;
use gapless_engine::ReduceOp;
use gapless_mem::Device;
use gapless_mem::fake::FakeDevice;

fn engine() -> (Arc<Mock>, GpuEngine) {
    let mock = Arc::new(Mock::new(1));
    let accelerator = Arc::clone(&mock) as Arc<dyn Accelerator>;
    (mock, GpuEngine::over(accelerator, Config::default().bounded()))
}

/// `count` elements of a type, at an address of the device's, or another one's.
fn elements(space: Space, address: u64, primitive: Primitive, count: u64) -> Typed {
    let layout = Datatype::from(primitive).commit().unwrap();
    let bytes = primitive.size_bytes() * count;
    Typed::new(Region::new(space, address, 0, bytes), 0, &layout, count).unwrap()
}

fn reduce(
    engine: &GpuEngine,
    srcs: &[Typed],
    dst: &Typed,
    range: Range<u64>,
) -> Result<Completion, EngineError> {
    // SAFETY: the device is pretended, and touches no memory.
    unsafe { engine.reduce_into(&ReduceOp::Sum.into(), srcs, dst, range, &[]) }
}

#[test]
fn one_kernel_reads_all_sources_and_writes_the_target() {
    let (mock, engine) = engine();
    let space = engine.device().space();
    let at = |address| elements(space, address, Primitive::Float, 64);
    reduce(&engine, &[at(0x1000), at(0x2000), at(0x3000)], &at(0x4000), 0..256).unwrap();
    let asked: Vec<Asked> = mock.log().ops.iter().map(|(_, op)| op.clone()).collect();
    let launch = Asked::Reduce(vec![0x4000, 0x1000, 0x2000, 0x3000]);
    assert_eq!(asked, [launch, Asked::Record(0)]);
    mock.log().end_all();
}

#[test]
fn a_call_that_fails_half_way_is_waited_for() {
    let (mock, engine) = engine();
    let space = engine.device().space();
    let at = |address| elements(space, address, Primitive::Float, 64);
    mock.log().fails_in = Some(1);
    let error = reduce(&engine, &[at(0x1000), at(0x2000)], &at(0x4000), 0..256).unwrap_err();
    assert!(matches!(error, EngineError::Device(_)), "{error}");
    assert!(matches!(mock.log().ops.last(), Some((_, Asked::Drain))));
    assert!(mock.log().busy().is_empty());
}

#[test]
fn what_is_refused_asks_nothing_of_a_lane() {
    let (mock, engine) = engine();
    let space = engine.device().space();
    let at = |address| elements(space, address, Primitive::Float, 64);
    let (two, target) = ([at(0x1000), at(0x2000)], at(0x4000));
    let doubles = elements(space, 0x1000, Primitive::Double, 32);
    let far = elements(FakeDevice::new(9).space(), 0x1000, Primitive::Float, 64);
    let refused = [
        reduce(&engine, &[], &target, 0..256),
        reduce(&engine, &two, &target, 2..256),
        reduce(&engine, &two, &target, 0..260),
        reduce(&engine, &[at(0x1000), doubles.clone()], &target, 0..256),
        // The pretended device has no doubles.
        reduce(&engine, &[doubles.clone(), doubles.clone()], &doubles, 0..256),
        reduce(&engine, &[at(0x1000), far.clone()], &target, 0..256),
        reduce(&engine, &two, &far, 0..256),
    ]
    .map(Result::unwrap_err);
    assert_eq!(refused[0], EngineError::NoSource);
    assert!(matches!(refused[1], EngineError::SplitElement { .. }));
    assert!(matches!(refused[2], EngineError::RangeOutside { .. }));
    assert!(matches!(refused[3], EngineError::NotUniform { .. }));
    assert_eq!(refused[4], EngineError::NoArithmetic { primitive: Primitive::Double });
    assert!(!engine.supports(&ReduceOp::Sum.into(), doubles.layout()));
    assert!(matches!(refused[5], EngineError::WrongSpace { .. }));
    assert!(matches!(refused[6], EngineError::WrongSpace { .. }));
    assert!(mock.log().ops.is_empty() && mock.log().started.is_empty());
}
