//! What a message is compared with: a plain copy of as many bytes, as a program would call for it and
//! wait for it.
//!
//! Between two places of one GPU, or of two, that is `cudaMemcpy` from the one to the other; between
//! GPU and host memory, the slower of the two directions to and from page-locked memory; on the host,
//! `memcpy`. Copies rotate as messages do.

use super::{Bench, Prepared, plan};
use crate::failure::Failure;
use crate::memory::{Budget, Locked, Opened, Where};
use crate::sampling;
use gapless_mem::{DeviceError, Region};
use gapless_report::{Samples, Summary};
use std::time::Duration;

/// A plain copy, and how long it takes.
#[derive(Clone, Copy, Debug)]
pub(in crate::pingpong) struct Plain {
    pub(in crate::pingpong) name: &'static str,
    pub(in crate::pingpong) seconds: Summary,
}

/// A copy within one space or from a device to another.
const MEMCPY: &str = "memcpy";
/// A copy between a device and page-locked host memory, the slower direction.
const PINNED: &str = "pinned copy";
/// The same, where the device does not lock memory.
const UNPINNED: &str = "host copy";

impl Bench<'_> {
    /// The plain copy between this process's place and the other's, of a contiguous message's bytes;
    /// and one through page-locked memory, if `pinned` asks for it or nothing else is possible.
    pub(in crate::pingpong) fn plain(
        &mut self,
        prepared: &Prepared,
        pinned: bool,
        seconds: f64,
    ) -> Result<Vec<Plain>, Failure> {
        let [mine, theirs] = [0, 1].map(|rank| self.spec.ends.of(rank));
        if !mine.is_device() && !theirs.is_device() {
            let seconds = self.memcpy(prepared, seconds)?;
            return Ok(vec![Plain { name: MEMCPY, seconds }]);
        }
        let mut all = Vec::new();
        if mine.is_device() && theirs.is_device() {
            let seconds = self.between_devices(prepared, seconds)?;
            all.push(Plain { name: MEMCPY, seconds });
        }
        if pinned || all.is_empty() {
            all.push(self.through_host(prepared, seconds)?);
        }
        Ok(all)
    }

    /// One `memcpy`, from arena to arena.
    fn memcpy(&mut self, prepared: &Prepared, seconds: f64) -> Result<Summary, Failure> {
        let (from, into) = (&prepared.send.places, &prepared.recv.places);
        let (outbox, inbox) = (&self.boxes.outbox, &mut self.boxes.inbox);
        sampled(seconds, |at| {
            let source = outbox.place(from, at % from.starts.len());
            let target = inbox.place_mut(into, at % into.starts.len());
            target.copy_from_slice(std::hint::black_box(source));
            Ok(())
        })
    }

    /// From this process's device to the other's, both driven from here.
    fn between_devices(&mut self, prepared: &Prepared, seconds: f64) -> Result<Summary, Failure> {
        let [mine, theirs] = [0, 1].map(|rank| self.spec.ends.of(rank));
        let (own, [from, back]) = self.opened(mine)?;
        let into = if mine == theirs {
            back
        } else {
            let (other, [_, into]) = self.opened(theirs)?;
            own.reach(&other);
            into
        };
        let pairs = pairs(prepared, from, into)?;
        sampled(seconds, |at| {
            let (from, into) = pairs[at % pairs.len()];
            // SAFETY: both lie in arenas that live as long as the process; no view of them is in use
            // while copies are measured, and the places of one round do not overlap.
            unsafe { own.copy(into, from) }
        })
    }

    /// To page-locked host memory and from there.
    fn through_host(&mut self, prepared: &Prepared, seconds: f64) -> Result<Plain, Failure> {
        let places = [0, 1].map(|rank| self.spec.ends.of(rank));
        let place = places.into_iter().find(|place| place.is_device()).ok_or_else(no_device)?;
        let (own, [from, into]) = self.opened(place)?;
        let pairs = pairs(prepared, from, into)?;
        let bytes = usize::try_from(prepared.send.places.buffer_bytes).unwrap_or(usize::MAX);
        let mut locked = match self.locked.take() {
            Some(locked) if locked.len() >= bytes => locked,
            _ => Locked::new(&own.device, bytes),
        };
        let host = locked.region().sub(0, bytes as u64).map_err(DeviceError::from)?;
        let down = sampled(seconds / 2.0, |at| {
            let (from, _) = pairs[at % pairs.len()];
            // SAFETY: as between devices; the host memory is held until the copies have ended.
            unsafe { own.copy(host, from) }
        })?;
        let up = sampled(seconds / 2.0, |at| {
            let (_, into) = pairs[at % pairs.len()];
            // SAFETY: as above.
            unsafe { own.copy(into, host) }
        })?;
        let name = if locked.is_locked() { PINNED } else { UNPINNED };
        self.locked = Some(locked);
        Ok(Plain { name, seconds: if down.median > up.median { down } else { up } })
    }

    /// The device of a place, and its arenas.
    fn opened(&mut self, place: Where) -> Result<(Opened, [Region; 2]), Failure> {
        let opened = self.devices.open(place, Budget::default())?.ok_or_else(no_device)?;
        let arenas = opened.arenas(self.spec.arena_bytes)?;
        Ok((opened.clone(), arenas))
    }
}

fn no_device() -> Failure {
    DeviceError::Unsupported { what: "a plain copy to compare with" }.into()
}

/// What is copied from where to where, in turn.
fn pairs(
    prepared: &Prepared,
    from: Region,
    into: Region,
) -> Result<Vec<(Region, Region)>, Failure> {
    let (sent, received) = (&prepared.send.places, &prepared.recv.places);
    let piece =
        |whole: Region, start| whole.sub(start, sent.buffer_bytes).map_err(DeviceError::from);
    let both = sent.starts.iter().zip(&received.starts);
    both.map(|(&out, &back)| Ok((piece(from, out)?, piece(into, back)?))).collect()
}

/// Times of whole calls, in turn on each place.
fn sampled(
    seconds: f64,
    mut call: impl FnMut(usize) -> Result<(), Failure>,
) -> Result<Summary, Failure> {
    let mut at = 0;
    let mut batch_of = |batch: u64| -> Result<Duration, Failure> {
        sampling::time(batch, || {
            at += 1;
            call(at - 1)
        })
    };
    let mut one = f64::MAX;
    for _ in 0..4 {
        one = one.min(batch_of(1)?.as_secs_f64());
    }
    let (samples, batch) = plan(one, seconds, None);
    let samples = (0..samples).map(|_| batch_of(batch)).collect::<Result<Samples, _>>()?;
    let summary = samples
        .summary()
        .map_err(|error| Failure::NoSamples { what: "a plain copy".to_owned(), error })?;
    Ok(summary.divided_by(u32::try_from(batch).unwrap_or(u32::MAX)))
}
