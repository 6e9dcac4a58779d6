//! How links end: why, what the device says of it, and when their queue pairs are destroyed.

use crate::ib::Ib;
use crate::link::{DrainingQp, Ending, LinkState, Up};
use crate::retain::{Retained, Sent};
use crate::verbs::device::DeviceEvent;
use gapless_btl::{AmTag, Event, LinkError, PeerId, Unacknowledged};
use std::time::{Duration, Instant};

/// For how long work and buffers of a link that has ended may come back, unless the notice is short.
const FLUSH: Duration = Duration::from_secs(1);

impl Ib {
    /// Why work has failed, by the status of its completion.
    pub(crate) fn cause(&self, id: u32, status: u32) -> LinkError {
        use rdma_sys::ibv_wc_status as wc;
        let (whom, said) = (self.whom(id), self.domain.context.status_text(status));
        let port = self.domain.context.port(self.here.port);
        // Adapters report it as no answer; Soft-RoCE, which has no route then, as an error of its own.
        let may_be_the_port = [wc::IBV_WC_RETRY_EXC_ERR, wc::IBV_WC_LOC_QP_OP_ERR];
        if may_be_the_port.contains(&status) && !port.is_ok_and(|port| port.active) {
            let reason = format!("{whom}: the port's link is down ({said})");
            return LinkError::Unreachable { reason };
        }
        match status {
            // A process that has ended, a host that has, or the way there: nothing says which.
            wc::IBV_WC_RETRY_EXC_ERR => {
                LinkError::Unreachable { reason: format!("{whom} does not acknowledge ({said})") }
            }
            wc::IBV_WC_RNR_RETRY_EXC_ERR => {
                LinkError::Unreachable { reason: format!("{whom}: receiver not ready ({said})") }
            }
            wc::IBV_WC_REM_ACCESS_ERR => {
                let reason = format!("{whom}: its memory is not registered any more ({said})");
                LinkError::Unreachable { reason }
            }
            wc::IBV_WC_REM_INV_REQ_ERR | wc::IBV_WC_REM_OP_ERR | wc::IBV_WC_BAD_RESP_ERR => {
                LinkError::Corrupt { what: format!("{whom} refuses what is right ({said})") }
            }
            wc::IBV_WC_WR_FLUSH_ERR => {
                let reason = format!("{whom}: the adapter ended the link ({said})");
                LinkError::Unreachable { reason }
            }
            _ => LinkError::System {
                operation: "work of the adapter",
                reason: format!("{whom}: {said}"),
            },
        }
    }

    /// Heeds what the device says of itself.
    pub(crate) fn device_events(&mut self) {
        while let Some(event) = self.domain.context.event() {
            let port = self.port_name();
            match event {
                DeviceEvent::DeviceGone => {
                    let reason = format!("the device of {port} is gone");
                    self.end_all(&LinkError::Unreachable { reason });
                }
                DeviceEvent::QueueFailed => {
                    let reason = format!("{port}: a queue of all links has failed");
                    self.end_all(&LinkError::System { operation: "work of the adapter", reason });
                }
                DeviceEvent::PairFailed(number) => {
                    if let Some(&id) = self.by_number.get(&number) {
                        let reason = format!("{}: its queue pair has failed", self.whom(id));
                        let operation = "work of the adapter";
                        self.end(id, LinkError::System { operation, reason });
                    }
                }
                DeviceEvent::PairAbused(number) => {
                    if let Some(&id) = self.by_number.get(&number) {
                        let what = format!("{} asked for what it may not", self.whom(id));
                        self.end(id, LinkError::Corrupt { what });
                    }
                }
                DeviceEvent::LastBuffer(number) => {
                    let id = self.by_number.get(&number).map(|&id| id as usize);
                    if let Some(up) = id.and_then(|id| self.links[id].up()) {
                        up.drained = true;
                    }
                    let mut draining = self.draining.iter_mut();
                    if let Some(draining_qp) =
                        draining.find(|draining_qp| draining_qp.qp.number() == number)
                    {
                        draining_qp.drained = true;
                    }
                }
                event => tracing::debug!(?event, port, "the device says"),
            }
        }
    }

    fn end_all(&mut self, error: &LinkError) {
        for id in 0..u32::try_from(self.links.len()).unwrap_or(u32::MAX) {
            self.end(id, error.clone());
        }
    }

    /// Destroys queue pairs whose buffers have come back, or had their time.
    fn bury(&mut self) {
        let (flush, before) = (self.flush(), self.draining.len());
        self.draining.retain_mut(|draining_qp| {
            let over = draining_qp.drained || draining_qp.since.elapsed() >= flush;
            // What came back before that is looked at first.
            !(over && std::mem::replace(&mut draining_qp.looked, over))
        });
        self.pairs -= u32::try_from(before - self.draining.len()).unwrap_or(0);
    }

    /// Ends a link: what is posted comes back first.
    pub(crate) fn end(&mut self, id: u32, error: LinkError) {
        let Some(up) = self.links[id as usize].up() else { return };
        if up.ending.is_some() {
            return;
        }
        up.qp.abandon();
        up.ending = Some(Ending { error, since: Instant::now(), empty: false });
        self.endings.push(id);
    }

    /// For how long work and buffers of a link that has ended may come back.
    pub(crate) fn flush(&self) -> Duration {
        FLUSH.min(self.config.notice / 8)
    }

    /// Loses links of which all has come back, and destroys queue pairs; after a complete look at completions.
    pub(crate) fn finish_endings(&mut self) {
        self.bury();
        if self.endings.is_empty() {
            return;
        }
        let flush = self.flush();
        let mut endings = std::mem::take(&mut self.endings);
        endings.retain(|&id| {
            let Some(up) = self.links[id as usize].up() else { return false };
            let Some(ending) = &mut up.ending else { return false };
            if !up.posted.is_empty() && ending.since.elapsed() < flush {
                return true;
            }
            // What arrived before the end may have come behind the last look.
            if !std::mem::replace(&mut ending.empty, true) {
                return true;
            }
            let error = ending.error.clone();
            self.lose(id, error);
            false
        });
        self.endings.append(&mut endings);
    }

    /// Ends a link at once: what is posted on it fails, and its loss is told.
    pub(crate) fn lose(&mut self, id: u32, error: LinkError) {
        let link = &mut self.links[id as usize];
        let state = std::mem::replace(&mut link.state, LinkState::Lost(error.clone()));
        match state {
            LinkState::Known => {}
            LinkState::Calling(_) | LinkState::Lost(_) => self.pairs -= 1,
            LinkState::Up(up) => {
                let mut up = up;
                // What it has said last is not sent again.
                up.look_at_ack_word();
                self.forget_ack_word(id);
                let Up { mut qp, posted, operations, incoming, drained, slots, retained, .. } = *up;
                self.by_number.remove(&qp.number());
                // From here on the adapter touches nothing for this link but buffers for arrivals.
                if posted.is_empty() {
                    qp.abandon();
                    self.draining.push(DrainingQp {
                        qp,
                        since: Instant::now(),
                        drained,
                        looked: false,
                    });
                } else {
                    self.pairs -= 1;
                    drop(qp);
                }
                match incoming.held() {
                    0 => self.arrivals.shrink(),
                    held => _ = self.debts.insert(id, held),
                }
                for posted in posted {
                    self.settle(posted.work, Err(error.clone()));
                }
                let (had, left) = retained.map(Retained::give_up).unwrap_or_default();
                for token in had {
                    self.outbox.push_back(Event::Sent { token, result: Ok(()) });
                }
                let whole = |Sent { tag, filled, token }| Unacknowledged {
                    tag: AmTag(tag),
                    message: slots.read(filled),
                    done: token,
                };
                self.links[id as usize].unacknowledged = left.into_iter().map(whole).collect();
                for operation in operations {
                    self.drop_operation(operation, &error);
                }
            }
        }
        tracing::debug!(peer = id, %error, "link lost");
        self.outbox.push_back(Event::Lost { peer: PeerId(id), error });
    }
}
