//! Lists of runs on their way into a program: merged as they come, then given their shortest form.

use std::sync::Arc;

use crate::program::{Flow, Op, ProgramError, Sink};

/// Runs in packed order, no two neighbours adjacent. Lengths are kept only once two differ.
pub(crate) struct RunList {
    disps: Vec<i64>,
    lens: Vec<u64>,
    first_len: u64,
    last: Option<(i64, u64)>,
    capacity: usize,
}

/// What a list of runs is.
pub(crate) enum Class {
    Empty,
    Run { disp: i64, len: u64 },
    Strided { disp: i64, count: u64, stride: i64, len: u64 },
    Affine { disp: i64, op: Op },
    Listed(Op),
}

impl RunList {
    pub(crate) fn with_capacity(capacity: usize) -> RunList {
        RunList {
            disps: Vec::with_capacity(capacity),
            lens: Vec::new(),
            first_len: 0,
            last: None,
            capacity,
        }
    }

    /// Appends a run, or lengthens the last. `len` is not 0.
    #[inline]
    pub(crate) fn push(&mut self, disp: i64, len: u64) {
        if let Some((last, so_far)) = &mut self.last {
            if last.checked_add_unsigned(*so_far) == Some(disp) {
                *so_far = so_far.saturating_add(len);
                return;
            }
            let (last, so_far) = (*last, *so_far);
            self.settle(last, so_far);
        }
        self.last = Some((disp, len));
    }

    /// Takes over a run that no longer grows.
    #[inline]
    fn settle(&mut self, disp: i64, len: u64) {
        if self.disps.is_empty() {
            self.first_len = len;
        } else if self.lens.is_empty() && len != self.first_len {
            // One more than there can be, for what the lengths become.
            self.lens.reserve_exact(self.capacity.max(self.disps.len()) + 1);
            self.lens.resize(self.disps.len(), self.first_len);
        }
        self.disps.push(disp);
        if !self.lens.is_empty() {
            self.lens.push(len);
        }
    }

    pub(crate) fn classify(mut self) -> Result<Class, ProgramError> {
        if let Some((disp, len)) = self.last.take() {
            self.settle(disp, len);
        }
        let RunList { disps, lens, first_len: len, .. } = self;
        if lens.is_empty() {
            return Ok(of_equal(disps, len));
        }
        // The lengths become prefix sums where they are.
        let mut starts = lens;
        let mut size = 0u64;
        for start in &mut starts {
            let len = std::mem::replace(start, size);
            size = size.checked_add(len).ok_or(ProgramError::Overflow)?;
        }
        starts.push(size);
        Ok(of_lists(disps, starts))
    }
}

/// What runs at `disps` are that begin at packed bytes `starts`, which has one more entry. No two neighbours are
/// adjacent.
pub(super) fn of_lists(disps: Vec<i64>, starts: Vec<u64>) -> Class {
    let lens = || starts.windows(2).map(|ends| ends[1] - ends[0]);
    let len = lens().next().unwrap_or(0);
    if lens().all(|other| other == len) {
        return of_equal(disps, len);
    }
    let len_step = starts[2].wrapping_sub(starts[1]).wrapping_sub(len).cast_signed();
    let affine =
        || lens().zip(lens().skip(1)).all(|(a, b)| signed_difference(a, b) == Some(len_step));
    if disps.len() > 2
        && let Some(step) = constant_step(&disps)
        && affine()
    {
        let op = Op::Affine { count: disps.len() as u64, step, len, len_step };
        return Class::Affine { disp: disps[0], op };
    }
    let shortest = lens().fold(u64::MAX, u64::min);
    let blocks = of_equal_blocks(&disps, &starts, shortest);
    let list = || Op::List { disps: disps.into(), starts: starts.into() };
    Class::Listed(blocks.unwrap_or_else(list))
}

/// Whether so many equal blocks, some of which continue the one before, are kept as they are rather than as these
/// merged runs: if they are fewer than twice as many. A block takes 8 bytes here and for a peer, and 4 in a device's
/// plan; a run of a length of its own takes 16, and a plan whose length is that of the data.
pub(super) const fn stay_apart(blocks: usize, runs: usize) -> bool {
    blocks < 2 * runs
}

/// The same as equal blocks, if these [stay apart](stay_apart). There are then runs of a single block, so it has the
/// length of the `shortest`. Two runs are affine.
pub(super) fn of_equal_blocks(disps: &[i64], starts: &[u64], shortest: u64) -> Option<Op> {
    let (runs, size) = (disps.len(), starts[disps.len()]);
    let blocks = usize::try_from(size / shortest).ok()?;
    let divides = |ends: &[u64]| (ends[1] - ends[0]).is_multiple_of(shortest);
    if runs < 3 || !stay_apart(blocks, runs) || !starts.windows(2).all(divides) {
        return None;
    }
    let mut all = Vec::with_capacity(blocks);
    for (&disp, ends) in disps.iter().zip(starts.windows(2)) {
        let (mut place, mut left) = (disp, ends[1] - ends[0]);
        while left > 0 {
            all.push(place);
            place = place.wrapping_add_unsigned(shortest);
            left -= shortest;
        }
    }
    Some(Op::Blocks { len: shortest, disps: Arc::new(all) })
}

/// What runs of `len` bytes are.
fn of_equal(mut disps: Vec<i64>, len: u64) -> Class {
    let Some(&disp) = disps.first() else { return Class::Empty };
    if disps.len() == 1 {
        return Class::Run { disp, len };
    }
    if let Some(stride) = constant_step(&disps) {
        return Class::Strided { disp, count: disps.len() as u64, stride, len };
    }
    disps.shrink_to_fit();
    Class::Listed(Op::Blocks { len, disps: Arc::new(disps) })
}

/// The difference of all neighbours, if it is one. Needs two entries.
pub(crate) fn constant_step(list: &[i64]) -> Option<i64> {
    let step = list.get(1)?.checked_sub(list[0])?;
    list.windows(2).all(|pair| pair[1].checked_sub(pair[0]) == Some(step)).then_some(step)
}

/// As [`constant_step`], of lengths.
pub(crate) fn constant_len_step(lens: &[u64]) -> Option<i64> {
    let step = signed_difference(*lens.first()?, *lens.get(1)?)?;
    let same = |pair: &[u64]| signed_difference(pair[0], pair[1]) == Some(step);
    lens.windows(2).all(same).then_some(step)
}

/// From one number to another, if 64 bits hold it.
pub(crate) fn signed_difference(from: u64, to: u64) -> Option<i64> {
    i64::try_from(i128::from(to) - i128::from(from)).ok()
}

/// Writes what is walked into a list.
pub(super) struct Expand<'a>(pub(super) &'a mut RunList);

impl Sink for Expand<'_> {
    fn run(&mut self, disp: i64, len: u64) -> Flow {
        self.0.push(disp, len);
        Flow::Continue(())
    }
}
