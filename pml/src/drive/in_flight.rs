//! What follows when work of engines has ended.

use crate::drive::core::Core;
use crate::rndv::in_flight::InFlight;
use gapless_bml::Bml;
use gapless_engine::EngineError;

impl Core {
    /// Checks which work has ended; returns how much.
    ///
    /// Asking a device costs a microsecond, and the parts of a message end one after the other: only the oldest part
    /// of each message is checked. While it goes on, the next part is started.
    pub(crate) fn poll_in_flight(&mut self, bml: &mut Bml) -> usize {
        let mut done = 0;
        let mut round = self.rndv.in_flight.round();
        while let Some((work, result)) = self.rndv.in_flight.next(&mut round) {
            self.work_ended(bml, work, result.map_err(EngineError::from));
            done += 1;
        }
        if done > 0 {
            self.rndv.in_flight.tidy();
        }
        done
    }

    fn work_ended(&mut self, bml: &mut Bml, work: InFlight, result: Result<(), EngineError>) {
        match work {
            InFlight::Part { id, part, transfer } => {
                let held = transfer.end();
                self.landed(bml, id, part, result.map(|()| held));
            }
            InFlight::Wasted { id, packing } => {
                drop(packing);
                self.requests.drained(id);
            }
            InFlight::Payload { id, packing } => {
                self.payload_packed(bml, id, packing.end(), result);
            }
            InFlight::Unpack { id, unpacking, mut matched } => {
                if let Err(error) = result {
                    matched.failure = Some(error.into());
                }
                let body = unpacking.end();
                self.finish_recv(id, matched);
                self.matching.pool.give(body);
            }
            InFlight::Await { id, completion, left } => {
                self.requests.lay_down(completion);
                self.awaited(bml, id, left, result);
            }
            InFlight::Over => {}
        }
    }
}
