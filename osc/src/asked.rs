//! Questions of this process, and its answers to those of others.

use crate::core::{Core, Done};
use crate::error::{Fault, WindowError};
use crate::wire::{Head, Kind, MORE};
use gapless_bml::{Bml, Rank};

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
    pub(crate) data: Vec<u8>,
    pub(crate) fault: Option<Fault>,
    pub(crate) lost: bool,
}

impl Core {
    /// A question that so many bytes answer, the first of which is numbered `base`.
    pub(crate) fn ask(&mut self, process: u32, base: u64, bytes: usize) -> u64 {
        self.next_token += 1;
        let data = vec![0; bytes];
        let (fault, lost) = (None, false);
        let asked = Asked { process, due: 0, open: true, base, data, fault, lost };
        self.asked.insert(self.next_token, asked);
        self.next_token
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
    pub(crate) fn answered(&mut self, token: u64) -> Option<Result<Asked, WindowError>> {
        let asked = self.asked.get(&token)?;
        if asked.lost {
            let loss = self.loss(asked.process);
            self.asked.remove(&token);
            return Some(Err(loss));
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
    pub(crate) fn drop_question(&mut self, token: u64) {
        self.asked.remove(&token);
    }

    /// An answer has come.
    pub(crate) fn answer(&mut self, from: Rank, head: &Head, bytes: &[u8]) -> Done {
        // It may be answered after nobody wants it any more.
        let Some(asked) = self.asked.get_mut(&head.token) else { return Done::Yes };
        if asked.process != from.0 || asked.due == 0 {
            return Done::Nonsense("an answer to what was not asked");
        }
        if head.op != MORE {
            asked.due -= 1;
        }
        if let Some(fault) = Fault::of_code(head.flag, head.value) {
            asked.fault.get_or_insert(fault);
            return Done::Yes;
        }
        let start = head.start.checked_sub(asked.base).and_then(|at| usize::try_from(at).ok());
        let start = start.unwrap_or(usize::MAX);
        let place = start.checked_add(bytes.len()).and_then(|end| asked.data.get_mut(start..end));
        match place {
            Some(place) => {
                place.copy_from_slice(bytes);
                Done::Yes
            }
            None => Done::Nonsense("an answer that is too long"),
        }
    }

    /// Answers a question, in as many messages as it takes.
    pub(crate) fn reply(
        &mut self,
        bml: &mut Bml,
        to: Rank,
        question: &Head,
        result: Result<(u64, &[u8]), Fault>,
    ) {
        let mut head = Head { token: question.token, ..Head::new(Kind::Answer, 0, 0) };
        let (start, bytes) = match result {
            Ok(found) => found,
            Err(fault) => {
                (head.flag, head.value) = fault.code();
                (0, &[][..])
            }
        };
        // The two ends may have transports with other bounds.
        let room = Core::room(bml, to.0).unwrap_or(0).max(1);
        let mut at = 0;
        loop {
            let end = bytes.len().min(at + room);
            let more = end < bytes.len();
            let op = if more { MORE } else { 0 };
            let head = Head { op, start: start + at as u64, ..head };
            if let Err(error) = self.post(bml, to.0, head, &bytes[at..end]) {
                tracing::debug!(peer = %to, %error, "an answer that nobody can be given");
                return;
            }
            if !more {
                return;
            }
            at = end;
        }
    }
}
