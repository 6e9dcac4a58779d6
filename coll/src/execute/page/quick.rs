//! Short collectives of plain memory that were done before: at once, if nothing delays them.
//!
//! Programs call the same again and again. What depends on the call alone is found out the first time ([`Known`]). From
//! then on a call stores, waits for a few loads' time, and loads. All that is unusual is left to [`Short`]: a rank that is
//! late or lost, a note that says something else, a reader that is behind. It goes on where this has stopped
//! ([`Halfway`]).

use std::ops::Range;

use gapless_engine::PackedFold;
use gapless_mem::Region;
use gapless_pml::Pml;
use gapless_sync::board::{Mark, Readers};

use super::plan::{self, Plan, Round, Span, Then};
use super::short::Stage;
use super::{Page, act};
use crate::Call;
use crate::execute::rows::Combine;
use crate::schedule::Buffer;

/// A short call whose buffers are plain memory, as one rank makes it.
#[derive(Clone, Debug)]
pub struct Known {
    plan: Plan,
    kind: u8,
    fold: Option<PackedFold>,
}

impl Known {
    /// What rank `rank` of `ranks` does; `None` if the call is not short, does not fit together, or combines elements by
    /// other means than a loop over packed ones.
    #[must_use]
    pub fn new(
        call: &Call<'_>,
        (rank, ranks): (usize, usize),
        combine: Option<&Combine>,
    ) -> Option<Known> {
        call.check(rank, ranks).ok()?;
        let fold = match call.reduction() {
            None => None,
            Some(of) => {
                let whole = |combine: &&Combine| of.unit.checked_rem(combine.bytes()) == Some(0);
                Some(combine.filter(whole)?.fold()?)
            }
        };
        if !plan::fits(call, ranks) {
            return None;
        }
        let plan = Plan::new(call, rank, ranks);
        Some(Known { kind: plan::kind(plan.operation), plan, fold })
    }
}

/// A short collective that was begun here, and is gone on with as [`Short`](super::short::Short).
#[derive(Clone, Copy, Debug)]
pub(super) struct Halfway {
    /// Its first round's number.
    pub(super) began: u64,
    /// Rounds that are over.
    pub(super) rounds: usize,
    pub(super) stage: Stage,
}

/// Where a part of a buffer lies. `None`: there is no such part, and none is needed.
fn part(
    span: Option<&Span>,
    (send, recv): (Option<Region>, Option<Region>),
) -> Result<Option<Region>, ()> {
    let Some(Span { buffer, range, .. }) = span else { return Ok(None) };
    let Range { start, end } = *range;
    let whole = if *buffer == Buffer::Send { send } else { recv };
    whole.and_then(|whole| whole.sub(start as u64, (end - start) as u64).ok()).map(Some).ok_or(())
}

impl Page {
    /// Does a collective if that takes no longer than a few looks; whether it has ended. If not, the caller goes on with
    /// the same call by [`begin`](Page::begin), with the same number. `look`: whether to look once more.
    ///
    /// `known` is of the same call as the other ranks', of this rank, and of buffers that are as long as these: `send` and
    /// `recv` are the memory that their packed streams are.
    ///
    /// # Safety
    /// Until this returns, `send` is valid for reads while nothing writes it, `recv` for reads and writes while nothing
    /// else touches it; the two do not overlap.
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    pub unsafe fn attempt(
        &mut self,
        number: u64,
        known: &Known,
        buffers: (Option<Region>, Option<Region>),
        pml: &mut Pml,
        mut look: impl FnMut() -> bool,
    ) -> bool {
        let Known { plan, kind, fold } = known;
        let (Ok(input), Ok(output)) =
            (part(plan.input.as_ref(), buffers), part(plan.output.as_ref(), buffers))
        else {
            return false;
        };
        let Page { shared, seat, comm, area, going, halfway, .. } = self;
        let (board, me) = (shared.board(), comm.rank() as usize);
        if going.is_some() {
            return false;
        }
        seat.begin(number);
        if seat.blocked_by(&board).is_some() {
            return false;
        }
        // SAFETY: the caller's promise.
        if input.is_some_and(|input| unsafe { area.fill(&input) }.is_err()) {
            return false;
        }
        let began = seat.round();
        for (rounds, round) in plan.rounds.iter().flatten().enumerate() {
            let mut stop = |stage| {
                *halfway = Some(Halfway { began, rounds, stage });
                false
            };
            let Round { publish, sources, note, .. } = round;
            if let Some((content, readers)) = *publish {
                if rounds > 0 && seat.blocked_by(&board).is_some() {
                    return stop(Stage::Publishing);
                }
                seat.publish(&board, *kind, area.note(content, *note), readers);
                seat.ring(&board, readers, |rank| act::ring(pml, comm, rank));
            }
            while !seat.all_there(&board, sources.clone()) {
                if !look() {
                    return stop(Stage::Reading);
                }
            }
            let expected =
                Ok(Some(Mark { kind: *kind, len: u16::try_from(*note).unwrap_or(u16::MAX) }));
            for (index, source) in sources.clone().enumerate() {
                if source == me {
                    area.take_own(index, round);
                } else if seat.look(&board, source) == expected {
                    let (block, start) = area.block(index, round);
                    seat.read(&board, source, start, block);
                } else {
                    return stop(Stage::Reading);
                }
            }
            if let Some(fold) = fold
                && round.then == Then::Combine
                && !sources.is_empty()
            {
                area.fold(fold, round);
            }
            seat.turn();
        }
        if plan.together {
            seat.all_began(began);
        }
        seat.finish(&board);
        seat.ring(&board, Readers::All, |rank| act::ring(pml, comm, rank));
        if let (Some(output), Some(last)) = (output, plan.rounds.iter().flatten().last()) {
            // SAFETY: the caller's promise. It fits: the result has as many bytes as the part of the buffer.
            let taken = unsafe { area.take(&output, last.then == Then::Combine) };
            debug_assert!(taken.is_ok(), "plain memory of this rank");
        }
        true
    }
}
