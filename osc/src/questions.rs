//! Questions of this process to others, and the answers.

use crate::error::Fault;
use crate::landing::Landing;
use crate::wire::{Head, MORE};
use std::collections::HashMap;

/// A question, or several with answers that belong together.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) process: u32,
    /// Answers that are due.
    due: u64,
    /// More questions follow.
    open: bool,
    /// What the first byte of the answers is numbered.
    base: u64,
    landing: Landing,
    pub(crate) fault: Option<Fault>,
    pub(crate) lost: bool,
}

impl Asked {
    /// The bytes of the answers, if they were kept.
    pub(crate) fn into_kept(self) -> Vec<u8> {
        self.landing.into_kept()
    }
}

/// Those that have no answer yet, or whose answer nobody has taken.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    asked: HashMap<u64, Asked>,
    last: u64,
}

/// The process that was asked is lost.
#[derive(Debug)]
pub(crate) struct LostProcess(pub(crate) u32);

impl Questions {
    /// A question whose answers go to `landing`; the first of their bytes is numbered `base`.
    pub(crate) fn ask(&mut self, process: u32, base: u64, landing: Landing) -> u64 {
        self.last += 1;
        let (fault, lost) = (None, false);
        let asked = Asked { process, due: 0, open: true, base, landing, fault, lost };
        self.asked.insert(self.last, asked);
        self.last
    }

    /// So many more answers are due; the last ones, unless `more` follow. Said in the step that sends the question: an
    /// answer that is not due is refused.
    pub(crate) fn expect(&mut self, token: u64, answers: u64, more: bool) {
        if let Some(asked) = self.asked.get_mut(&token) {
            asked.due += answers;
            asked.open = more;
        }
    }

    /// What was answered, once all has been; or that the one who was asked is lost.
    pub(crate) fn answered(&mut self, token: u64) -> Option<Result<Asked, LostProcess>> {
        let asked = self.asked.get(&token)?;
        if asked.lost {
            return self.asked.remove(&token).map(|asked| Err(LostProcess(asked.process)));
        }
        if asked.open || asked.due > 0 {
            return None;
        }
        self.asked.remove(&token).map(Ok)
    }

    /// The process that is asked.
    pub(crate) fn asks(&self, token: u64) -> Option<u32> {
        self.asked.get(&token).map(|asked| asked.process)
    }

    /// Whether all has been answered, or never will be.
    pub(crate) fn is_answered(&self, token: u64) -> bool {
        self.asked.get(&token).is_none_or(|asked| asked.lost || !asked.open && asked.due == 0)
    }

    /// Nobody wants the answer any more.
    pub(crate) fn forget(&mut self, token: u64) {
        self.asked.remove(&token);
    }

    /// A process is lost: it answers nothing any more.
    pub(crate) fn lose(&mut self, process: u32) {
        self.asked.values_mut().filter(|it| it.process == process).for_each(|it| it.lost = true);
    }

    /// An answer has come. An error: it is none of what was asked.
    pub(crate) fn answer(
        &mut self,
        from: u32,
        head: &Head,
        bytes: &[u8],
    ) -> Result<(), &'static str> {
        // It may be answered after nobody wants it any more.
        let Some(asked) = self.asked.get_mut(&head.token) else { return Ok(()) };
        if asked.process != from || asked.due == 0 {
            return Err("an answer to what was not asked");
        }
        if head.op != MORE {
            asked.due -= 1;
        }
        if let Some(fault) = Fault::of_code(head.flag, head.value) {
            asked.fault.get_or_insert(fault);
            return Ok(());
        }
        match head.start.checked_sub(asked.base) {
            Some(at) if asked.landing.fill(at, bytes) => Ok(()),
            _ => Err("an answer that is too long"),
        }
    }
}
