//! The module `gpu`: ranks whose buffers lie on one GPU, or on several of a host, by copies there
//! ([`hyperq`](crate::hyperq)).
//!
//! Whether all buffers lie there is found out in the call itself: each rank knows its own. If they do not, the next
//! module has the call; or messages, if all lie on devices and the call does not stay there.

use std::task::Poll;
use std::time::Duration;

use gapless_bml::now_ns;

use super::module::{Begun, Cx, Module};
use super::{CollOp, Form};
use crate::{CollError, HyperQ, Outcome};

/// How long a call that is left otherwise than by its end waits until the process that works on its buffers has
/// stopped. After that nobody could say who writes them.
const LENT_MAX: Duration = Duration::from_secs(20);

// SAFETY: it works on the buffers from `begin` until `advance` gives a result or `give_up` says that all are free.
unsafe impl Module for HyperQ {
    fn name(&self) -> &'static str {
        "gpu"
    }

    fn takes(&self, op: &CollOp) -> bool {
        op.asks
    }

    fn begin(&mut self, op: &mut CollOp, cx: &mut Cx<'_>) -> Result<Begun, CollError> {
        let number = op.number();
        let Some(call) = op.call().filter(|_| HyperQ::on_devices(op.buffers(), cx.pml)) else {
            self.decline(number);
            return Ok(Begun::Declined);
        };
        if op.form() != Form::Blocking || !self.may_stay(&call) {
            self.meet(number)?;
            return Ok(Begun::InOrder);
        }
        let buffers = (op.buffers().clone(), op.combine().cloned());
        // SAFETY: whoever made the operation grants its memory until it has ended, or was given up (`CollOp::new`); the
        // queue and whoever borrows the module abandon it before.
        let begun = unsafe { HyperQ::begin(self, number, &call, buffers, cx.pml) }?;
        Ok(if begun { Begun::InOrder } else { Begun::Declined })
    }

    fn advance(&mut self, op: &mut CollOp, cx: &mut Cx<'_>) -> Poll<Result<Outcome, CollError>> {
        let advanced = HyperQ::advance(self, cx.pml, cx.engines, cx.engines, now_ns());
        op.only_messages = matches!(advanced, Poll::Ready(Ok(Outcome::ByMessages)));
        advanced
    }

    fn look(&mut self) -> bool {
        HyperQ::look(self)
    }

    fn abandon(&mut self) {
        let start = now_ns();
        while !self.give_up() {
            if u128::from(now_ns().saturating_sub(start)) > LENT_MAX.as_nanos() {
                gapless_mem::abort(
                    "another process's GPU kernels may write memory of a call that was left",
                );
            }
            std::hint::spin_loop();
        }
    }

    fn skip(&mut self, number: u64, _: &mut Cx<'_>) {
        self.decline(number);
    }

    fn close(&mut self, cx: &mut Cx<'_>) -> bool {
        HyperQ::close(self, cx.pml)
    }
}
