//! One epoll descriptor for everything that a transport waits for, level-triggered, which also serves to block on; and a
//! timer in it, for what is due without anybody's doing. For transports over descriptors (feature `watch`).

use crate::LinkError;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::mem::MaybeUninit;
use std::time::Duration;

/// Events taken at a time.
pub const EVENTS: usize = 64;

/// What is waited for, of one descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    /// That there is something to read.
    pub reading: bool,
    /// That there is room to write.
    pub writing: bool,
}

impl Interest {
    /// Something to read alone.
    pub const READING: Interest = Interest { reading: true, writing: false };
    /// Room to write alone.
    pub const WRITING: Interest = Interest { reading: false, writing: true };

    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::RDHUP;
        flags.set(EventFlags::IN, self.reading);
        flags.set(EventFlags::OUT, self.writing);
        flags
    }
}

/// What has happened to a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Happened {
    /// The name that it was added with.
    pub name: u64,
    /// There is something to read, or an end.
    pub readable: bool,
    /// There is room to write, or an end.
    pub writable: bool,
    /// The other end sends no more, or is gone.
    pub closing: bool,
    /// There is an error. Alone, it may be a note in the error queue of a socket that works.
    pub error: bool,
}

/// The descriptor and its timer.
#[derive(Debug)]
pub struct Watch {
    epoll: OwnedFd,
    alarm: OwnedFd,
}

fn system(operation: &'static str) -> impl Fn(rustix::io::Errno) -> LinkError {
    move |error| LinkError::System { operation, reason: error.to_string() }
}

impl Watch {
    /// With a timer of this name.
    ///
    /// # Errors
    /// The system has no descriptors.
    pub fn new(alarm_name: impl Into<u64>) -> Result<Watch, LinkError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create"))?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let alarm = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(system("timerfd_create"))?;
        let watch = Watch { epoll, alarm };
        watch.add(&watch.alarm, alarm_name, Interest::READING)?;
        Ok(watch)
    }

    /// To block on: readable while anything is.
    #[must_use]
    pub fn raw(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Watches a descriptor. Closing it takes it out again.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn add(
        &self,
        fd: impl AsFd,
        name: impl Into<u64>,
        interest: Interest,
    ) -> Result<(), LinkError> {
        let name = EventData::new_u64(name.into());
        epoll::add(&self.epoll, fd, name, interest.flags()).map_err(system("epoll_ctl"))
    }

    /// Waits for something else of a descriptor that was added, or by another name.
    pub fn change(&self, fd: impl AsFd, name: impl Into<u64>, interest: Interest) {
        let name = EventData::new_u64(name.into());
        // Changing takes no memory.
        let changed = epoll::modify(&self.epoll, fd, name, interest.flags());
        debug_assert!(changed.is_ok(), "{changed:?}");
    }

    /// Waits for nothing of a descriptor that was added any more.
    pub fn remove(&self, fd: impl AsFd) {
        let removed = epoll::delete(&self.epoll, fd);
        debug_assert!(removed.is_ok(), "{removed:?}");
    }

    /// Has the timer go off after this time, or not at all; it stays readable until it is set anew.
    pub fn set_alarm(&self, after: Option<Duration>) {
        // Zero would disarm it.
        let value = after.map(|after| after.max(Duration::from_nanos(1)));
        let value = value.and_then(|after| Timespec::try_from(after).ok());
        let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
        let time = Itimerspec { it_interval: nothing, it_value: value.unwrap_or(nothing) };
        let set = rustix::time::timerfd_settime(&self.alarm, TimerfdTimerFlags::empty(), &time);
        debug_assert!(set.is_ok(), "{set:?}");
    }

    /// What has happened, the first of `list`: so many. Does not wait.
    pub fn look(&self, list: &mut [Happened; EVENTS]) -> usize {
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, Some(&now)) else { return 0 };
        let ends = EventFlags::RDHUP | EventFlags::HUP;
        for (event, place) in events.iter().zip(list.iter_mut()) {
            // The structure is packed.
            let (data, flags) = (event.data, event.flags);
            *place = Happened {
                name: data.u64(),
                readable: flags.intersects(EventFlags::IN | ends),
                writable: flags.intersects(EventFlags::OUT | EventFlags::HUP),
                closing: flags.intersects(ends),
                error: flags.contains(EventFlags::ERR),
            };
        }
        events.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn seen(watch: &Watch) -> Vec<Happened> {
        let mut list = [Happened::default(); EVENTS];
        let count = watch.look(&mut list);
        list[..count].to_vec()
    }

    #[test]
    fn what_happens_is_told_by_name_until_it_is_over() {
        let watch = Watch::new(7u64).unwrap();
        let (one, mut other) = UnixStream::pair().unwrap();
        watch.add(&one, 3u64 << 32 | 5, Interest::READING).unwrap();
        assert_eq!(seen(&watch), []);
        other.write_all(b"x").unwrap();
        let readable = Happened { name: 3 << 32 | 5, readable: true, ..Happened::default() };
        assert_eq!((seen(&watch), seen(&watch)), (vec![readable], vec![readable]));
        watch.change(&one, 9u64, Interest::WRITING);
        let writable = Happened { name: 9, writable: true, ..Happened::default() };
        assert_eq!(seen(&watch), [writable]);
        watch.change(&one, 9u64, Interest::default());
        assert_eq!(seen(&watch), []);
        drop(other);
        let [end] = seen(&watch)[..] else { panic!("{:?}", seen(&watch)) };
        assert!(end.closing && end.readable && end.writable, "{end:?}");
        watch.remove(&one);
        assert_eq!(seen(&watch), []);
        drop(one);
        watch.set_alarm(Some(Duration::ZERO));
        while seen(&watch).is_empty() {
            std::thread::yield_now();
        }
        assert_eq!(seen(&watch)[0].name, 7);
        watch.set_alarm(None);
        assert_eq!(seen(&watch), []);
    }
}
