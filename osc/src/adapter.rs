//! Numbers of 64 bits that adapters change: the accumulations of a [window of numbers](crate::Flavor::Numbers) whose ranks all
//! reach each other's memory by a transport with atomic operations.
//!
//! **One way for all.** What an adapter changes is atomic against its other changes, not against processors: so the mutexes of
//! stripes would not keep it away, nor it a processor's load and store. So either all ranks of such a window change numbers
//! this way, in their own memory and in that of ranks of their host, too, or none does: the ranks agree on that when the window
//! is made, and nothing but numbers of 64 bits can be accumulated in it.
//!
//! **Which operation.** Sums of integers are one operation of the adapter, and so is compare and swap, and reading, which adds
//! nothing. All others are compare and swap, again until nobody has changed the number in between: of two ranks that disturb
//! each other, one gets on.

use crate::arithmetic::Arithmetic;
use crate::core::{AM_TAG, Core, Osc};
use crate::error::WindowError;
use crate::memory::for_each_run;
use crate::place::Access;
use crate::window::{Driver, Window};
use gapless_bml::{Bml, Change, PeerState, Rank, RdmaError, RdmaRail, RemoteKey};
use gapless_engine::ReduceOp;
use gapless_mem::{Region, Space};

/// Numbers that one call has under way.
const AT_ONCE: usize = 8;
/// Bytes whose places are listed at a time.
const LISTED: u64 = 256 << 10;

/// What is to become of numbers.
pub(crate) enum Goal<'o> {
    /// Each is combined with its operand, of these packed ones.
    Combine(&'o Arithmetic, &'o [u8]),
    /// Replaced, if it is what it is compared with.
    Swap { compare: u64, swap: u64 },
}

impl Goal<'_> {
    fn operand(&self, at: usize) -> u64 {
        match self {
            Goal::Combine(_, bytes) => bytes.get(at..at + 8).map_or(0, crate::arithmetic::read),
            Goal::Swap { .. } => 0,
        }
    }

    /// The first operation on the number at `at`; whether it is the last.
    fn first(&self, at: usize) -> (Change, bool) {
        match self {
            Goal::Swap { compare, swap } => {
                (Change::CompareSwap { compare: *compare, swap: *swap }, true)
            }
            Goal::Combine(arithmetic, _) if arithmetic.is_sum() => {
                (Change::Add(self.operand(at)), true)
            }
            Goal::Combine(arithmetic, _) => (Change::Add(0), arithmetic.op() == ReduceOp::NoOp),
        }
    }

    /// What is to replace a number; `None` if it stays as it is.
    fn next(&self, at: usize, old: u64) -> Option<u64> {
        match self {
            Goal::Swap { .. } => None,
            Goal::Combine(arithmetic, _) => {
                arithmetic.change(old, self.operand(at)).filter(|new| *new != old)
            }
        }
    }
}

/// Numbers of a call, some of them with an operation under way; if the call is left, nobody waits for these.
struct Elements<'w> {
    osc: &'w Osc,
    list: Vec<Element>,
}

impl Drop for Elements<'_> {
    fn drop(&mut self) {
        let numbers = self.list.iter().filter_map(|element| element.number);
        let mut core = self.osc.core();
        numbers.for_each(|number| core.changes.forget(number));
    }
}

/// What was made of an operation.
enum Begun {
    Number(u64),
    /// Try again after some progress.
    Full,
    Failed(WindowError),
}

/// A number on its way to what it is to be.
struct Element {
    /// In the window, and in the packed stream.
    offset: u64,
    at: usize,
    /// The operation that is due or under way, and whether it ends the matter.
    change: Change,
    is_last: bool,
    number: Option<u64>,
}

impl Element {
    fn new((offset, at): (u64, usize), goal: &Goal<'_>) -> Element {
        let (change, is_last) = goal.first(at);
        Element { offset, at, change, is_last, number: None }
    }

    /// Its operation has found this. Gives what the number was, if it is what it is to be now.
    fn found(&mut self, old: u64, goal: &Goal<'_>) -> Option<u64> {
        self.number = None;
        let swapped = matches!(self.change, Change::CompareSwap { compare, .. } if compare == old);
        if self.is_last || swapped {
            return Some(old);
        }
        match goal.next(self.at, old) {
            None => Some(old),
            Some(swap) => {
                self.change = Change::CompareSwap { compare: old, swap };
                None
            }
        }
    }
}

impl Osc {
    /// Has a number of a process changed.
    fn begin(
        &self,
        bml: &mut Bml,
        (process, (rail, key)): (u32, &(RdmaRail, RemoteKey)),
        (offset, change): (u64, Change),
    ) -> Begun {
        if let Some(loss) = loss(bml, process) {
            return Begun::Failed(loss);
        }
        let space = bml.token_space(AM_TAG);
        let Some((peer, rdma)) = bml.changing(*rail, Rank(process), key) else {
            let why = "the link by which numbers are changed has ended".to_owned();
            return Begun::Failed(WindowError::Transport { why });
        };
        let mut core = self.core();
        let (number, word) = core.changes.enter();
        let refused = |core: &mut Core, begun| {
            core.changes.leave(number);
            begun
        };
        let Some(token) = space.token(number) else { return refused(&mut core, Begun::Full) };
        let address = word.as_ptr().expose_provenance() as u64;
        let found = Region::new(Space::Host, address, 0, 8);
        // SAFETY: the word is never freed, and no other operation has it before this one has ended; nobody reads it before.
        // No two operations have a number. The key is of memory that its window keeps registered.
        match unsafe { rdma.atomic(peer, key, offset, change, found, token) } {
            Ok(()) => Begun::Number(number),
            Err(RdmaError::Full) => refused(&mut core, Begun::Full),
            Err(error) => {
                let why = error.to_string();
                refused(&mut core, Begun::Failed(WindowError::Transport { why }))
            }
        }
    }
}

/// Why a process is lost, if it is.
fn loss(bml: &Bml, process: u32) -> Option<WindowError> {
    let PeerState::Lost(error) = bml.state(Rank(process)) else { return None };
    let blamed = bml.blame(Rank(process));
    let (culprit, error) = blamed.unwrap_or_else(|| (Rank(process), error.clone()));
    Some(WindowError::Lost { process: culprit.0, error })
}

impl Window {
    /// The rail and the key by which a rank's numbers are changed, if adapters do that.
    #[inline]
    pub(crate) fn key(&self, rank: u32) -> Option<&(RdmaRail, RemoteKey)> {
        self.members[rank as usize].numbers.as_ref()
    }

    /// Whether adapters change the numbers of this window, at all ranks.
    #[must_use]
    pub fn is_by_adapter(&self) -> bool {
        self.members.iter().all(|member| member.numbers.is_some())
    }

    /// Whether a window of numbers takes such an element.
    pub(crate) fn check_number(
        &self,
        call: &'static str,
        is_number: bool,
    ) -> Result<(), WindowError> {
        match self.flavor {
            crate::Flavor::Numbers if !is_number => {
                Err(WindowError::Flavor { call, flavor: self.flavor.name() })
            }
            _ => Ok(()),
        }
    }

    /// Brings all numbers of an access to their goal, some at a time; `found` gets what they were.
    pub(crate) fn change_numbers<D: Driver>(
        &self,
        driver: &D,
        (access, key): (&Access, &(RdmaRail, RemoteKey)),
        goal: &Goal<'_>,
        mut found: Option<&mut [u8]>,
    ) -> Result<(), D::Error> {
        let all = access.target.packed_bytes();
        let mut places = Vec::new();
        let mut start = 0;
        while start < all {
            let part = start..all.min(start + LISTED);
            let before = usize::try_from(start).unwrap_or(usize::MAX);
            start = part.end;
            let runs = for_each_run(&access.target, part, |offset, at, len| {
                let numbers = (0..len / 8).map(|i| (offset + 8 * i as u64, before + at + 8 * i));
                places.extend(numbers);
                Ok(())
            });
            runs.map_err(|fault| self.refused(access.rank, fault))?;
            self.change_listed(
                driver,
                (access, key),
                goal,
                places.drain(..),
                found.as_deref_mut(),
            )?;
        }
        Ok(())
    }

    fn change_listed<D: Driver>(
        &self,
        driver: &D,
        (access, key): (&Access, &(RdmaRail, RemoteKey)),
        goal: &Goal<'_>,
        mut left: impl Iterator<Item = (u64, usize)>,
        mut found: Option<&mut [u8]>,
    ) -> Result<(), D::Error> {
        let process = self.members[access.rank as usize].process;
        let mut elements = Elements { osc: self.osc(), list: Vec::with_capacity(AT_ONCE) };
        let whom = || Some(process);
        let changed = driver.until(true, whom, |bml| {
            let elements = &mut elements.list;
            let mut failure = None;
            elements.retain_mut(|element| {
                let Some(number) = element.number else { return true };
                // The lock is not held while anything else is called.
                let taken = self.osc().core().changes.take(number);
                match taken {
                    None => true,
                    Some(Err(error)) => {
                        let why = error.to_string();
                        let failed = || WindowError::Transport { why };
                        failure = Some(loss(bml, process).unwrap_or_else(failed));
                        false
                    }
                    Some(Ok(old)) => {
                        let Some(old) = element.found(old, goal) else { return true };
                        let room = found.as_deref_mut();
                        let room = room.and_then(|all| all.get_mut(element.at..element.at + 8));
                        if let Some(room) = room {
                            crate::arithmetic::write(old, room);
                        }
                        false
                    }
                }
            });
            if let Some(failure) = failure {
                return Some(Err(failure));
            }
            elements.extend(
                left.by_ref().take(AT_ONCE - elements.len()).map(|place| Element::new(place, goal)),
            );
            for element in elements.iter_mut().filter(|element| element.number.is_none()) {
                let what = (element.offset, element.change);
                match self.osc().begin(bml, (process, key), what) {
                    Begun::Number(number) => element.number = Some(number),
                    Begun::Full => break,
                    Begun::Failed(error) => return Some(Err(error)),
                }
            }
            elements.is_empty().then_some(Ok(()))
        })?;
        Ok(changed?)
    }
}
