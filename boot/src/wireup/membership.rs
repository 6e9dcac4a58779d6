//! This process's membership in its launcher's job. One world has it at a time; another may take it when that one has
//! left, if the launcher allows it.
//!
//! A descriptor that a launcher left (`PMI_FD`) is a number in the environment, valid only while no other file gets
//! that number. So it is taken over once, and kept open here between worlds: no other file ever has its number.

use super::{WireupError, line_stream};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The state of the membership; there is one.
struct Memberships {
    taken: bool,
    /// How many worlds have left.
    left: u32,
    /// Descriptors that were taken over, by their numbers; `None` while a world has one, and for ever if that world
    /// did not leave in good order.
    descriptors: BTreeMap<u32, Option<OwnedFd>>,
}

static MEMBERSHIPS: Mutex<Memberships> =
    Mutex::new(Memberships { taken: false, left: 0, descriptors: BTreeMap::new() });

fn memberships() -> MutexGuard<'static, Memberships> {
    MEMBERSHIPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The membership, while this lives.
#[derive(Debug)]
pub(super) struct Membership {
    /// The number of the descriptor that came with it, if any.
    descriptor: Option<u32>,
    /// How many other worlds had it before.
    before: u32,
}

impl Membership {
    /// Takes the membership.
    ///
    /// # Errors
    /// Another world of this process has it.
    pub(super) fn take() -> Result<Membership, WireupError> {
        let mut memberships = memberships();
        if std::mem::replace(&mut memberships.taken, true) {
            return Err(WireupError::Joined);
        }
        Ok(Membership { descriptor: None, before: memberships.left })
    }

    /// The connection over the descriptor that the launcher named in `variable`.
    ///
    /// # Errors
    /// It is none; or an earlier world did not leave in good order, and its last answer is unknown.
    pub(super) fn connection(
        &mut self,
        variable: &'static str,
        number: u32,
    ) -> Result<OwnedFd, WireupError> {
        let mut memberships = memberships();
        let stream = match memberships.descriptors.get_mut(&number) {
            // SAFETY: the launcher left the descriptor to this process, and only this line takes descriptors over. It
            // is the first time for this number: afterwards the table has it, unless it is no descriptor.
            None => unsafe { line_stream::adopt(variable, number) }?,
            Some(kept) => kept.take().ok_or_else(|| WireupError::OnlyOnce {
                reason: "the last world did not leave it in good order".to_owned(),
            })?,
        };
        memberships.descriptors.insert(number, None);
        self.descriptor = Some(number);
        Ok(stream)
    }

    /// How many other worlds had it before, and left in good order.
    pub(super) fn worlds_before(&self) -> u32 {
        self.before
    }

    /// For launchers that must not be asked again.
    ///
    /// # Errors
    /// Another world was in the job before.
    pub(super) fn only_once(&self, language: &'static str) -> Result<(), WireupError> {
        match self.before > 0 {
            true => Err(WireupError::OnlyOnce { reason: format!("it speaks {language}") }),
            false => Ok(()),
        }
    }

    /// Leaves in good order; `stream` is the one of [`connection`](Membership::connection), if there was one.
    pub(super) fn leave(self, stream: Option<OwnedFd>) {
        let mut memberships = memberships();
        memberships.left += 1;
        if let Some(number) = self.descriptor {
            memberships.descriptors.insert(number, stream);
        }
    }

    /// A launcher that refuses the second time does not let a process join again.
    pub(super) fn explain(&self, error: WireupError) -> WireupError {
        match error {
            WireupError::OnlyOnce { .. } => error,
            error if self.before > 0 => WireupError::OnlyOnce { reason: error.to_string() },
            error => error,
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        memberships().taken = false;
    }
}
