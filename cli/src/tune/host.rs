//! What the host's engine costs: a run of bytes, and a layout that is decoded.

use super::clock::{real, repeat};
use super::found::TunedNumbers;
use crate::failure::Failure;
use gapless_dtype::{Convertor, Datatype, Layout, Primitive, TypeError};
use gapless_engine::EngineError;
use std::time::Duration;

/// Runs in the layout that is packed: it stays in cache, as fragments do.
const RUNS: u64 = 8192;

/// Runs of so many doubles, one to four doubles apart: a list that no pattern describes.
pub(super) fn scattered_doubles(runs: u64, doubles: u64) -> Result<Layout, TypeError> {
    let mut at = 0;
    let displacements: Vec<i64> = (0..runs)
        .map(|index| {
            let here = at;
            let apart = 1 + (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 62);
            at += i64::try_from(doubles + apart).unwrap_or(1);
            here
        })
        .collect();
    let double = Datatype::from(Primitive::Double);
    Datatype::indexed_block(doubles, &displacements, &double)?.commit()
}

/// Measures for so long.
pub(super) fn measure(time: Duration, found: &mut TunedNumbers) -> Result<(), Failure> {
    let each = time.div_f64(3.0);
    let runs = scattered_doubles(RUNS, 1)?;
    let plain = Datatype::contiguous(RUNS, &Primitive::Double.into())?.commit()?;
    let bytes = usize::try_from(RUNS * 8 * 5 + 64).unwrap_or(usize::MAX);
    let memory = vec![1u8; bytes];
    let mut packed = vec![0u8; usize::try_from(RUNS * 8).unwrap_or(usize::MAX)];
    // What the host's engine does, without its checks of where memory lies.
    let mut pack = |layout: &Layout| -> Result<f64, Failure> {
        let mut convertor = Convertor::new(layout, 1).map_err(EngineError::from)?;
        repeat(each, || {
            let packed = convertor.seek(0).and_then(|()| convertor.pack(&memory, 0, &mut packed));
            packed.map(|_| ()).map_err(|error| EngineError::from(error).into())
        })
    };
    let (in_runs, whole) = (pack(&runs)?, pack(&plain)?);
    // At either end of a message.
    let blocks = runs.blocks_of(1).unwrap_or(RUNS).max(1);
    found.set("host", "block_ns", (in_runs - whole).max(0.0) * 1e9 / real(blocks));

    let flat = runs.flatten();
    let decode = repeat(each, || -> Result<(), Failure> {
        std::hint::black_box(Layout::unflatten(&flat).is_ok());
        Ok(())
    })?;
    let decode_mb_s = real(flat.len() as u64) / decode.max(1e-9) / 1e6;
    // It is fetched through the ring first.
    let ring = found.get("host", "pipeline_mb_s").unwrap_or(f64::MAX);
    found.set("host", "layout_mb_s", 1.0 / (1.0 / decode_mb_s + 1.0 / ring));
    Ok(())
}
