//! Carries tasks between ranks of one thread: at the earliest moment, or late and in any order.
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gapless_bml::LinkError;

use super::Random;
use crate::{Awaited, Leaving, TaskFault, TaskName, TaskWork, Tasks};

/// At whom a task is put, by whom, and its name.
type Key = (u32, u32, TaskName);

#[derive(Debug, Default)]
struct State {
    expected: BTreeMap<Key, TaskWork>,
    /// Those that are late, with their payloads.
    late: Option<Vec<(Key, Vec<u8>)>>,
    lost: Vec<u32>,
    /// How many have come.
    count: usize,
    /// Those that nobody expected, with payloads.
    strays: usize,
}

/// Where the tasks of all ranks meet.
#[derive(Clone, Debug, Default)]
pub struct Hub(Arc<Mutex<State>>);

impl Hub {
    /// Whose tasks run as soon as they are put.
    #[must_use]
    pub fn early() -> Self {
        Self::default()
    }

    /// Whose tasks run when [`run_one`](Self::run_one) says so.
    #[must_use]
    pub fn late() -> Self {
        let hub = Self::default();
        hub.lock().late = Some(Vec::new());
        hub
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A rank's end.
    #[must_use]
    pub fn end(&self, rank: u32) -> Arc<dyn Tasks> {
        Arc::new(End { hub: self.clone(), rank })
    }

    /// The rank is lost.
    pub fn lose(&self, rank: u32) {
        self.lock().lost.push(rank);
    }

    /// Runs one of the late tasks, any of them.
    pub fn run_one(&self, random: &mut Random) {
        let mut state = self.lock();
        let Some(late) = state.late.as_mut().filter(|late| !late.is_empty()) else { return };
        let at = random.index(late.len());
        let (key, payload) = late.swap_remove(at);
        state.run(key, &payload);
    }

    /// How many tasks have come to somebody who expected them.
    #[must_use]
    pub fn count(&self) -> usize {
        self.lock().count
    }

    /// How many tasks with a payload nobody expected.
    #[must_use]
    pub fn strays(&self) -> usize {
        self.lock().strays
    }
}

impl State {
    fn run(&mut self, key: Key, payload: &[u8]) {
        match self.expected.get(&key) {
            Some(work) => {
                work.run(payload);
                self.count += 1;
            }
            None => self.strays += usize::from(!payload.is_empty()),
        }
    }

    fn lost(&self, process: u32) -> Option<TaskFault> {
        let error = LinkError::PeerGone { reason: "the test says so".to_owned() };
        self.lost.contains(&process).then_some(TaskFault::Lost { process, error })
    }
}

#[derive(Debug)]
struct End {
    hub: Hub,
    rank: u32,
}

impl Tasks for End {
    fn expect(
        &self,
        from: u32,
        name: TaskName,
        work: TaskWork,
    ) -> Result<Box<dyn Awaited>, TaskFault> {
        let key = (self.rank, from, name);
        let before = self.hub.lock().expected.insert(key, work);
        assert!(before.is_none(), "two tasks of one name: {key:?}");
        Ok(Box::new(Waiting { hub: self.hub.clone(), key }))
    }

    fn put(
        &self,
        to: u32,
        name: TaskName,
        payload: Vec<u8>,
    ) -> Result<Box<dyn Leaving>, TaskFault> {
        let mut state = self.hub.lock();
        if let Some(fault) = state.lost(to) {
            return Err(fault);
        }
        let key = (to, self.rank, name);
        let longest = state.expected.get(&key).map_or(u64::MAX, TaskWork::bytes);
        if payload.len() as u64 > longest {
            return Ok(Box::new(Gone(false)));
        }
        match &mut state.late {
            Some(late) => late.push((key, payload)),
            None => state.run(key, &payload),
        }
        Ok(Box::new(Gone(true)))
    }
}

#[derive(Debug)]
struct Waiting {
    hub: Hub,
    key: Key,
}

impl Awaited for Waiting {
    fn failed(&self) -> Option<TaskFault> {
        self.hub.lock().lost(self.key.1)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.hub.lock().expected.remove(&self.key);
    }
}

/// Whether the target has taken it.
#[derive(Debug)]
struct Gone(bool);

impl Leaving for Gone {
    fn taken(&self) -> Option<Result<(), TaskFault>> {
        let refused = || TaskFault::Other("no receive buffer is as long".to_owned());
        Some(self.0.then_some(()).ok_or_else(refused))
    }
}
