//! One-sided operations of rank 0 on the memory of rank 1, which calls nothing meanwhile: each, or each window of them, and
//! a flush, in an epoch of locks that lasts.
//!
//! What an operation leaves behind is compared before anything is timed.

use super::show::{BenchOutput, Column, Figure};
use super::sizes::Sizes;
use super::{OneSided, rank};
use crate::Worlds;
use crate::failure::Failure;
use crate::job;
use crate::memory::{self, Budget, Devices};
use gapless::{Error, OwnedBuffer, ReduceOp, Window, WindowRequest, World};
use std::process::ExitCode;

/// Bytes of a number.
const NUMBER: u64 = 8;

/// Which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnesidedCall {
    Put,
    Get,
    Accumulate,
    GetAccumulate,
    FetchAndOp,
    CompareAndSwap,
}

impl OnesidedCall {
    fn name(self) -> &'static str {
        match self {
            OnesidedCall::Put => "put",
            OnesidedCall::Get => "get",
            OnesidedCall::Accumulate => "accumulate",
            OnesidedCall::GetAccumulate => "get-accumulate",
            OnesidedCall::FetchAndOp => "fetch-and-op",
            OnesidedCall::CompareAndSwap => "compare-and-swap",
        }
    }

    /// Sizes from the least to the greatest, if nothing else is asked for; and what they are multiples of.
    fn sizes(self) -> ((u64, u64), u64) {
        match self {
            OnesidedCall::Put | OnesidedCall::Get => ((1, 4 << 20), 1),
            OnesidedCall::Accumulate | OnesidedCall::GetAccumulate => ((NUMBER, 4 << 20), NUMBER),
            OnesidedCall::FetchAndOp | OnesidedCall::CompareAndSwap => ((NUMBER, NUMBER), NUMBER),
        }
    }

    /// Memory that both ranks need for up to so many bytes and windows of this length, at most: the window of each, what
    /// is sent and compared, and what is read.
    fn needed(self, most: u64, window: u64) -> u64 {
        let read = if self.reads() { window } else { 0 };
        most.saturating_mul(read.saturating_add(5))
    }

    /// Whether it has a buffer for what it reads.
    fn reads(self) -> bool {
        matches!(self, OnesidedCall::Get | OnesidedCall::GetAccumulate)
    }

    /// The sizes that were asked for, if they can be.
    pub(super) fn list(self, asked: Option<Sizes>) -> Result<Vec<u64>, Failure> {
        let ((least, most), unit) = self.sizes();
        let list = Sizes::list(asked, (least, most));
        let fits = |size: &u64| size.is_multiple_of(unit) && (unit == 1 || *size >= NUMBER);
        let alone = least == most;
        match list.iter().find(|size| !fits(size) || (alone && **size != NUMBER)) {
            None => Ok(list),
            Some(size) => Err(Failure::BadOption {
                option: "--message-size",
                value: size.to_string(),
                why: match alone {
                    true => format!("{} is of one number of 8 bytes", self.name()),
                    false => format!("{} is of whole doubles, 8 bytes each", self.name()),
                },
            }),
        }
    }
}

/// This rank's part.
pub(super) fn run(
    options: &OneSided,
    call: OnesidedCall,
    sizes: &[u64],
    worlds: Worlds<'_>,
) -> Result<ExitCode, Failure> {
    let (world, mut devices) = job::join(worlds, |_, _| Vec::new(), Budget::default())?;
    if world.size() != 2 {
        let ranks = world.size();
        return job::refuse(world, Failure::NotTwo { ranks });
    }
    let host = memory::Ends::HOST;
    rank::run(world, host, |world| measure(options, call, sizes, world, &mut devices))
}

#[expect(clippy::cast_precision_loss, reason = "at most 65,536")]
fn measure(
    options: &OneSided,
    call: OnesidedCall,
    sizes: &[u64],
    world: &World,
    devices: &mut Devices,
) -> Result<(), Failure> {
    let window = options.window.unwrap_or(1);
    let most = sizes.iter().copied().max().unwrap_or(NUMBER);
    let needed = call.needed(most, window);
    rank::has_room(world, devices, memory::Ends::HOST, (call.name(), needed))?;
    let column = match options.window {
        Some(_) => Column::BANDWIDTH,
        None => Column::MICROSECONDS,
    };
    let common = &options.common;
    let mut output = BenchOutput::new(common, world.rank() == 0, call.name(), (column, None));
    let mut about = "2 ranks, memory host (window_allocate), flushed".to_owned();
    if options.window.is_some() {
        about += &format!(", window {window}");
    }
    output.begin(&about)?;
    output.series(None)?;
    let mut ends = Ends::new(world, call, usize::try_from(most).unwrap_or(usize::MAX))?;
    let control = world.comm().dup()?;
    for &bytes in sizes {
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        ends.make_room(size, window);
        let mut wrong = [u32::from(!ends.check(size)?)];
        let mine = wrong;
        control.allreduce(&mine, &mut wrong, ReduceOp::Max)?;
        if wrong != [0] {
            if world.rank() != 0 {
                // Rank 0 says so.
                break;
            }
            let first = format!("{} of {bytes} B", call.name());
            return Err(Failure::WrongBytes { cases: 1, all: 1, first });
        }
        let initiates = world.rank() == 0;
        let timing = common.plan().carry_out(&control, || match initiates {
            true => {
                ends.window_of(size, window)?;
                ends.flush()
            }
            false => Ok(()),
        })?;
        let each = window as f64;
        output.figure(&Figure {
            case: call.name().to_owned(),
            payload_bytes: bytes,
            average: timing.average() / each,
            samples: timing.samples.iter().map(|seconds| seconds / each).collect(),
            space: "host".to_owned(),
            protocol: "window".to_owned(),
            blocks: 1,
            extra: vec![("window", window), ("iterations", timing.iterations)],
            ..Figure::default()
        })?;
    }
    ends.leave()?;
    output.finish()
}

/// Begins an operation for each buffer, then waits for all; the buffers stand in their places again.
fn all_begun<B: OwnedBuffer>(
    buffers: &mut Vec<B>,
    begin: impl Fn(B) -> Result<WindowRequest<B>, Error>,
) -> Result<(), Error> {
    let begun: Vec<_> = buffers.drain(..).map(begin).collect::<Result<_, _>>()?;
    for request in begun {
        let (buffer, result) = request.wait();
        buffers.push(buffer);
        result?;
    }
    Ok(())
}

/// A rank's windows, of which an operation uses one, and buffers.
struct Ends<'w> {
    world: &'w World,
    call: OnesidedCall,
    bytes: Window<u8>,
    doubles: Window<f64>,
    words: Window<u64>,
    out: Vec<u8>,
    more: Vec<f64>,
    /// What rank 0 reads into: as many as are under way at a time.
    into: Vec<Vec<u8>>,
    found: Vec<Vec<f64>>,
    /// What stands in the word.
    word: u64,
}

impl<'w> Ends<'w> {
    /// For up to so many bytes.
    fn new(world: &'w World, call: OnesidedCall, most: usize) -> Result<Ends<'w>, Error> {
        let comm = world.comm();
        let of = |is: bool, count: usize| if is { count } else { 0 };
        let moves = matches!(call, OnesidedCall::Put | OnesidedCall::Get);
        let word = matches!(call, OnesidedCall::FetchAndOp | OnesidedCall::CompareAndSwap);
        let numbers = most / 8;
        let mut bytes = comm.window_allocate::<u8>(of(moves, most))?;
        let mut doubles = comm.window_allocate::<f64>(of(!moves && !word, numbers))?;
        let mut words = comm.window_allocate::<u64>(of(word, 1))?;
        if world.rank() == 0 {
            bytes.lock_all()?;
            doubles.lock_all()?;
            words.lock_all()?;
        }
        let pattern = |at: usize| (at % 251).to_le_bytes()[0];
        Ok(Ends {
            world,
            call,
            bytes,
            doubles,
            words,
            out: (0..of(moves, most)).map(pattern).collect(),
            more: vec![1.0; of(!moves && !word, numbers)],
            into: Vec::new(),
            found: Vec::new(),
            word: 0,
        })
    }

    /// Buffers for a window of reads of so many bytes.
    fn make_room(&mut self, size: usize, window: u64) {
        let window = usize::try_from(window).unwrap_or(usize::MAX);
        let of = |call| if self.call == call && self.world.rank() == 0 { window } else { 0 };
        let (gets, found) = (of(OnesidedCall::Get), of(OnesidedCall::GetAccumulate));
        // Those of the size before are given back first.
        (self.into, self.found) = (Vec::new(), Vec::new());
        self.into = vec![vec![0; size]; gets];
        self.found = vec![vec![0.0; size / 8]; found];
    }

    /// A window of operations of so many bytes. Reads are all begun before the first is waited for, except those of a
    /// word.
    fn window_of(&mut self, size: usize, window: u64) -> Result<(), Error> {
        if window == 1 || !self.call.reads() {
            return (0..window).try_for_each(|_| self.once(size));
        }
        let (bytes, doubles, more) = (&self.bytes, &self.doubles, &self.more[..]);
        let numbers = size / 8;
        all_begun(&mut self.into, |into| bytes.rget(into, 1, 0).map_err(|refused| refused.error))?;
        all_begun(&mut self.found, |found| {
            let begun = doubles.rget_accumulate(&more[..numbers], found, 1, 0, ReduceOp::Sum);
            begun.map_err(|refused| refused.error)
        })
    }

    /// One operation of so many bytes.
    fn once(&mut self, size: usize) -> Result<(), Error> {
        let numbers = size / 8;
        match self.call {
            OnesidedCall::Put => self.bytes.put(&self.out[..size], 1, 0),
            OnesidedCall::Get => self.bytes.get(&mut self.into[0][..], 1, 0),
            OnesidedCall::Accumulate => {
                self.doubles.accumulate(&self.more[..numbers], 1, 0, ReduceOp::Sum)
            }
            OnesidedCall::GetAccumulate => {
                let (more, found) = (&self.more[..numbers], &mut self.found[0][..]);
                self.doubles.get_accumulate(more, found, 1, 0, ReduceOp::Sum)
            }
            OnesidedCall::FetchAndOp => {
                self.word = self.words.fetch_and_op(1u64, 1, 0, ReduceOp::Sum)? + 1;
                Ok(())
            }
            OnesidedCall::CompareAndSwap => {
                let found = self.words.compare_and_swap(self.word, self.word + 1, 1, 0)?;
                self.word = found + u64::from(found == self.word);
                Ok(())
            }
        }
    }

    fn flush(&self) -> Result<(), Error> {
        match self.call {
            OnesidedCall::Put | OnesidedCall::Get => self.bytes.flush(1),
            OnesidedCall::Accumulate | OnesidedCall::GetAccumulate => self.doubles.flush(1),
            OnesidedCall::FetchAndOp | OnesidedCall::CompareAndSwap => self.words.flush(1),
        }
    }

    /// Whether two operations do at both ends what they should.
    fn check(&mut self, size: usize) -> Result<bool, Error> {
        let (comm, numbers) = (self.world.comm(), size / 8);
        let initiates = comm.rank() == 0;
        if !initiates {
            match self.call {
                OnesidedCall::Put => self.bytes.write(&vec![0xFFu8; size], 0)?,
                OnesidedCall::Get => self.bytes.write(&self.out[..size], 0)?,
                OnesidedCall::Accumulate | OnesidedCall::GetAccumulate => {
                    self.doubles.write(&vec![5.0f64; numbers], 0)?;
                }
                OnesidedCall::FetchAndOp | OnesidedCall::CompareAndSwap => {
                    self.words.store(0u64, 0)?
                }
            }
        }
        comm.barrier()?;
        if initiates {
            self.word = 0;
            for _ in 0..2 {
                self.once(size)?;
                self.flush()?;
            }
        }
        comm.barrier()?;
        Ok(match (self.call, initiates) {
            (OnesidedCall::Put, false) => {
                let mut found = vec![0u8; size];
                self.bytes.read(&mut found, 0)?;
                found == self.out[..size]
            }
            (OnesidedCall::Get, true) => self.into[0] == self.out[..size],
            (OnesidedCall::Accumulate | OnesidedCall::GetAccumulate, false) => {
                let mut found = vec![0.0f64; numbers];
                self.doubles.read(&mut found, 0)?;
                found.iter().all(|value| *value == 7.0)
            }
            (OnesidedCall::GetAccumulate, true) => self.found[0].iter().all(|value| *value == 6.0),
            (OnesidedCall::FetchAndOp | OnesidedCall::CompareAndSwap, true) => self.word == 2,
            (OnesidedCall::FetchAndOp | OnesidedCall::CompareAndSwap, false) => {
                self.words.load(0)? == 2
            }
            (OnesidedCall::Put | OnesidedCall::Accumulate, true) | (OnesidedCall::Get, false) => {
                true
            }
        })
    }

    /// Ends the epoch, and frees the windows.
    fn leave(mut self) -> Result<(), Error> {
        if self.world.rank() == 0 {
            self.bytes.unlock_all()?;
            self.doubles.unlock_all()?;
            self.words.unlock_all()?;
        }
        self.bytes.free()?;
        self.doubles.free()?;
        self.words.free().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_that_an_operation_can_have() {
        let list = |call: OnesidedCall, text: &str| call.list(Some(text.parse().unwrap()));
        assert_eq!(list(OnesidedCall::Put, "1:4").unwrap(), [1, 2, 4]);
        assert_eq!(list(OnesidedCall::Accumulate, "8:32").unwrap(), [8, 16, 32]);
        assert_eq!(OnesidedCall::FetchAndOp.list(None).unwrap(), [8]);
        for (call, text) in [
            (OnesidedCall::Accumulate, "4"),
            (OnesidedCall::GetAccumulate, "0"),
            (OnesidedCall::CompareAndSwap, "16"),
        ] {
            assert!(matches!(list(call, text), Err(Failure::BadOption { .. })), "{text}");
        }
    }
}
