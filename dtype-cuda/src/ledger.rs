//! How many blocks of waiting kernels this process may have on each device at once.
//!
//! A reservation belongs to a communicator of a stream or to a worker, never to a call, and is given back when that is
//! dropped. The ranks of a communicator add up what the processes have reserved that use one device.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

type Rows = HashMap<[u8; 16], u32>;

fn rows() -> MutexGuard<'static, Rows> {
    static ROWS: OnceLock<Mutex<Rows>> = OnceLock::new();
    // Consistent between any two statements.
    ROWS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Blocks of waiting kernels that are reserved on a device until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    uuid: [u8; 16],
    blocks: u32,
}

impl Reservation {
    /// Reserves blocks; also gives how many this process has reserved there then.
    #[must_use]
    pub fn new(uuid: [u8; 16], blocks: u32) -> (Reservation, u32) {
        let mut rows = rows();
        let row = rows.entry(uuid).or_default();
        // What overflows is more than any device holds, and must be given back as it was taken.
        let taken = blocks.min(u32::MAX - *row);
        *row += taken;
        (Reservation { uuid, blocks: taken }, *row)
    }

    /// Gives back what is more than this.
    pub fn shrink(&mut self, blocks: u32) {
        let back = self.blocks.saturating_sub(blocks);
        if let Some(row) = rows().get_mut(&self.uuid) {
            *row -= back;
        }
        self.blocks -= back;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(row) = rows().get_mut(&self.uuid) {
            *row -= self.blocks;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_added_by_device_and_given_back() {
        let (one, two) = ([201; 16], [202; 16]);
        let (first, sum) = Reservation::new(one, 64);
        assert_eq!(sum, 64);
        let (second, sum) = Reservation::new(one, 8);
        assert_eq!(sum, 72);
        let (_elsewhere, sum) = Reservation::new(two, 5);
        assert_eq!(sum, 5);
        let (mut less, _) = Reservation::new(two, 50);
        [60, 20, 30].into_iter().for_each(|blocks| less.shrink(blocks));
        assert_eq!(Reservation::new(two, 0).1, 25);
        drop(less);
        assert_eq!(Reservation::new(two, 0).1, 5);
        drop(first);
        let (much, sum) = Reservation::new(one, u32::MAX);
        assert_eq!(sum, u32::MAX);
        drop(much);
        drop(second);
        let (_last, sum) = Reservation::new(one, 1);
        assert_eq!(sum, 1);
    }
}
