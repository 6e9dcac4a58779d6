//! One epoll descriptor to block on: completions, the door, what the device says of itself, and a timer for what is due
//! by the clock.

use crate::system;
use gapless_btl::LinkError;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::time::Duration;

/// The descriptor and its timer.
pub(crate) struct Watch {
    epoll: OwnedFd,
    alarm: OwnedFd,
}

impl Watch {
    /// # Errors
    /// The system has no descriptors.
    pub(crate) fn new() -> Result<Watch, LinkError> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| system("epoll_create", e))?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let alarm = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)
            .map_err(|e| system("timerfd_create", e))?;
        let watch = Watch { epoll, alarm };
        watch.add(&watch.alarm)?;
        Ok(watch)
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Closing a descriptor takes it out again.
    ///
    /// # Errors
    /// The system has no memory.
    pub(crate) fn add(&self, fd: impl AsFd) -> Result<(), LinkError> {
        epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN)
            .map_err(|e| system("epoll_ctl", e))
    }

    /// Has the descriptor become readable after this time, or not by itself.
    pub(crate) fn set_alarm(&self, after: Option<Duration>) {
        // Zero would disarm it.
        let value = after.map(|after| after.max(Duration::from_nanos(1)));
        let value = value.and_then(|after| Timespec::try_from(after).ok());
        let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
        let time = Itimerspec { it_interval: nothing, it_value: value.unwrap_or(nothing) };
        let set = rustix::time::timerfd_settime(&self.alarm, TimerfdTimerFlags::empty(), &time);
        debug_assert!(set.is_ok(), "{set:?}");
    }
}
