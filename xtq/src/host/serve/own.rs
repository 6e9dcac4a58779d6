//! Tasks for the worker that came by messages: threads put them into this process's own ring, and wait for their ends.

use super::super::Inner;
use crate::device::{PutOutcome, RingError};
use crate::error::TaskError;
use crate::packet::{Command, Flags, Launch, Packet, TaskWork};
use std::time::Duration;

/// How often a thread looks for the end of a task before it sleeps in between, and for how long.
const LOOKS: u32 = 2000;
const NAP: Duration = Duration::from_micros(50);

/// As an initiator would send it.
fn sent(command: &Command) -> Result<Packet, TaskError> {
    let TaskWork::Kernel(launch) = command.work else {
        return Err("its packet is a function's".into());
    };
    let work = TaskWork::Kernel(Launch { arguments: 0, ..launch });
    let flags = command.flags & Flags::SENT;
    let command = Command { object: 0, signal: 0, flags, work, ..*command };
    Packet::new(&command).map_err(|error| TaskError(error.to_string()))
}

impl Inner {
    /// Runs a task that came by a message, and waits for its end.
    pub(in crate::host) fn run_on_worker(
        &self,
        command: &Command,
        body: [&[u8]; 2],
    ) -> Result<(), TaskError> {
        let packet = sent(command)?;
        let (mut position, mut looks) = (None, 0);
        loop {
            let mut held = self.served();
            let Some(served) = held.as_mut() else { return Err("its worker is gone".into()) };
            while let Some((put, outcome)) = served.own.next() {
                served.ended.insert(put, outcome);
            }
            if position.is_some_and(|(number, _)| number != served.number) {
                // Another one has taken its place.
                return Err("its worker is gone".into());
            }
            if let Some(outcome) = position.and_then(|(_, put)| served.ended.remove(&put)) {
                return match outcome {
                    PutOutcome::Ended => Ok(()),
                    PutOutcome::Failed(why) => Err(TaskError(why.to_string())),
                    PutOutcome::Refused(why) => {
                        Err(TaskError(format!("its worker refused it: {why}")))
                    }
                    PutOutcome::Malformed => Err("its worker has found no packet".into()),
                };
            }
            if position.is_none() {
                match served.own.put(&packet, body) {
                    Ok(put) => {
                        position = Some((served.number, put));
                        served.own.announce();
                    }
                    Err(RingError::Full) => {}
                    Err(error) => return Err(TaskError(error.to_string())),
                }
            }
            if !served.own.is_served()
                && !served.changes
                && let Err(error) = served.go_on()
            {
                self.lose_worker(held, &error);
                continue;
            }
            drop(held);
            looks += 1;
            if looks < LOOKS { std::thread::yield_now() } else { std::thread::sleep(NAP) }
        }
    }
}
