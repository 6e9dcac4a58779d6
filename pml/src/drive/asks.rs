//! Who hangs: a peer asks, or answers.

use crate::comm::Comm;
use crate::drive::core::Core;
use crate::links::Outgoing;
use crate::wire::{self, Doing};
use gapless_bml::{Bml, now_ns};

impl Core {
    /// A peer asks, or answers. An error is its fault.
    pub(crate) fn asked(
        &mut self,
        bml: &mut Bml,
        from: u32,
        is_question: bool,
        doing: Doing,
    ) -> Result<(), String> {
        if doing.whom.is_some_and(|whom| whom as usize >= self.links.size()) {
            return Err(format!("that it waits for process {:?}", doing.whom));
        }
        self.asks.said(from, is_question, doing, now_ns())?;
        if !is_question {
            return Ok(());
        }
        let outbox = &self.links[from].outbox;
        if outbox.iter().any(|item| matches!(item, Outgoing::Control(bytes) if wire::is_say(bytes)))
        {
            return Err("a question before the answer to the last one".to_owned());
        }
        let answer = self.told_to(from, &self.asks.answer(&doing));
        self.send_control(bml, from, &wire::asking(false, &answer));
        Ok(())
    }

    /// `doing` as a peer is told it: with the context by the number that the peer knows.
    pub(crate) fn told_to(&self, peer: u32, doing: &Doing) -> Doing {
        let there = |context: u32| {
            let comm = self.comms.of_context(context)?;
            let comm = if context % 2 == 1 { comm.collective() } else { Comm::clone(comm) };
            Some(comm.context_at(comm.rank_of(peer)?))
        };
        Doing { context: doing.context.and_then(there), ..*doing }
    }
}
