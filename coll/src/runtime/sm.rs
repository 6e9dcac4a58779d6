//! The module `sm`: shared memory that all ranks map ([`sm`](crate::sm)).

use std::task::Poll;

use super::CollOp;
use super::module::{Armed, Begun, Cx, Module};
use crate::sm::SharedSegment;
use crate::{CollError, Outcome};

// SAFETY: a shared segment works on the buffers of a call from `begin_call` until `advance` gives a result or `give_up`
// returns, and only reads what is sent. Peers read buffers that it has offered only as long.
unsafe impl Module for SharedSegment {
    fn name(&self) -> &'static str {
        "sm"
    }

    fn takes(&self, op: &CollOp) -> bool {
        op.shared && !op.only_messages
    }

    fn begin(&mut self, op: &mut CollOp, _: &mut Cx<'_>) -> Result<Begun, CollError> {
        let (number, call) = (op.number(), op.sm_call(self.place())?);
        // SAFETY: whoever made the operation grants its memory until it has ended, or was given up (`CollOp::new`); the
        // queue and whoever borrows the segment abandon it before.
        unsafe { self.begin_call(number, call) }?;
        Ok(Begun::InOrder)
    }

    fn advance(&mut self, _: &mut CollOp, cx: &mut Cx<'_>) -> Poll<Result<Outcome, CollError>> {
        SharedSegment::advance(self, cx.pml, cx.engines, cx.engines).map_ok(|()| Outcome::Done)
    }

    fn look(&mut self) -> bool {
        SharedSegment::look(self)
    }

    fn arm(&mut self, cx: &mut Cx<'_>) -> Armed {
        SharedSegment::arm(self, cx.pml).map_or(Armed::Poll, Armed::Until)
    }

    fn is_armed(&mut self) -> bool {
        SharedSegment::is_armed(self)
    }

    fn is_busy(&self, _: &CollOp) -> bool {
        SharedSegment::is_busy(self)
    }

    fn awaits(&self) -> Option<u32> {
        SharedSegment::awaits(self)
    }

    fn abandon(&mut self) {
        self.give_up();
    }

    fn skip(&mut self, number: u64, cx: &mut Cx<'_>) {
        self.refuse(number, cx.pml);
    }

    fn close(&mut self, cx: &mut Cx<'_>) -> bool {
        SharedSegment::close(self, cx.pml);
        true
    }
}
