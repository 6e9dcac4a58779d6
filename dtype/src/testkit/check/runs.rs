//! `iov`: the runs are those of the typemap, in packed order, as long as they can be.

use super::{Case, Verdict, ensure, wide};
use crate::testkit::rng::Rng;
use crate::{Convertor, Run};

/// Asked for everything, the convertor lists exactly the maximal runs.
pub(super) fn listed(case: &Case<'_>) -> Verdict {
    let mut listed = vec![Run::default(); case.runs.len() + 2];
    let mut convertor = case.convertor()?;
    let (n, bytes) = convertor.iov(&mut listed, u64::MAX);
    ensure!(bytes == wide(case.bytes.len()), "iov lists {bytes} bytes of {}", case.bytes.len());
    ensure!(
        listed[..n] == case.runs,
        "iov lists {n} runs, the oracle {}; they differ first at {:?}",
        case.runs.len(),
        listed[..n].iter().zip(&case.runs).position(|(got, expected)| got != expected),
    );
    let at_end = convertor.iov(&mut listed, u64::MAX);
    ensure!(at_end == (0, 0), "iov past the end: {at_end:?}");
    Ok(())
}

/// In bounded pieces from any place, the runs' bytes are the typemap's, none is empty, and only
/// the bounds cut a run.
pub(super) fn in_pieces(case: &Case<'_>, rng: &mut Rng) -> Verdict {
    let from = if rng.chance(50) { 0 } else { case.cut(rng) };
    let mut convertor = case.convertor()?;
    let sought = convertor.seek(wide(from));
    ensure!(sought.is_ok(), "seeking to {from}: {sought:?}");
    let mut at = from;
    while at < case.bytes.len() {
        let mut listed = vec![Run::default(); 1 + rng.index(6)];
        let bytes_max = if rng.chance(50) { u64::MAX } else { rng.below(64) };
        at = piece(case, &mut convertor, &mut listed, bytes_max, at)?;
    }
    ensure!(at == case.bytes.len(), "iov runs past the end");
    Ok(())
}

fn piece(
    case: &Case<'_>,
    convertor: &mut Convertor,
    listed: &mut [Run],
    bytes_max: u64,
    from: usize,
) -> Result<usize, String> {
    let (n, bytes) = convertor.iov(listed, bytes_max);
    let room = listed.len();
    if bytes > bytes_max || n > room {
        return Err(format!("iov gave {n} runs of {bytes} bytes for {room} of {bytes_max}"));
    }
    if bytes_max > 0 && n == 0 {
        return Err(format!("iov gave nothing at byte {from} of {}", case.bytes.len()));
    }
    let mut at = from;
    for (place, run) in listed[..n].iter().enumerate() {
        let expected = longest_run(&case.bytes[at..]);
        let last = place + 1 == n;
        let as_long_as_allowed = run.len == expected || (last && bytes == bytes_max);
        let right = case.bytes[at] == run.displacement && run.len <= expected && run.len > 0;
        if !right || !as_long_as_allowed {
            let displacement = case.bytes[at];
            return Err(format!(
                "at byte {at} iov gives {run:?}, the oracle {expected} bytes at {displacement}"
            ));
        }
        at += usize::try_from(run.len).expect("bounded by the list");
    }
    let position = convertor.position();
    if wide(at - from) != bytes || position != wide(at) {
        return Err(format!("iov reports {bytes} bytes from {from}, but stands at {position}"));
    }
    Ok(at)
}

fn longest_run(bytes: &[i64]) -> u64 {
    wide(1 + bytes.windows(2).take_while(|pair| pair[0] + 1 == pair[1]).count())
}

/// `blocks` counts the maximal runs, and the statistics of one instance's agree.
pub(super) fn blocks(case: &Case<'_>) -> Verdict {
    let one = case.typemap.runs(1).map_err(|error| format!("the oracle: {error}"))?;
    let layout = &case.layout;
    let blocks = layout.blocks();
    ensure!(blocks == wide(one.len()), "{blocks} blocks, the oracle has {}", one.len());
    let blocks = layout.blocks_of(case.count);
    let all = wide(case.runs.len());
    ensure!(blocks == Some(all), "{blocks:?} blocks in all, the oracle has {all}");
    let lengths = layout.block_lengths();
    let shortest = one.iter().map(|run| run.len).min().unwrap_or(0);
    let longest = one.iter().map(|run| run.len).max().unwrap_or(0);
    ensure!(
        (lengths.min, lengths.max) == (shortest, longest),
        "{lengths:?}, the oracle has {shortest} to {longest}"
    );
    let gaps = case.typemap.true_extent().unsigned_abs().saturating_sub(case.typemap.size());
    let got = layout.gap_bytes();
    ensure!(got == gaps, "{got} bytes of gaps, the oracle has {gaps}");
    Ok(())
}
