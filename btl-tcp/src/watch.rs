//! One epoll descriptor for all sockets, level-triggered, which also serves to block on; and a timer in it, for what
//! is due without any socket's doing.

use crate::system;
use gapless_btl::LinkError;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::mem::MaybeUninit;
use std::time::Duration;

/// Events taken at a time.
const EVENTS: usize = 64;

/// What an event is about; the number is that of a listener, link or stranger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Listener(u32),
    Stranger(u32),
    /// A call to the peer of this number.
    Call(u32),
    Link(u32),
    /// A connection of this peer that may be needed.
    Spare(u32),
    /// A connection that only shows whether the host answers.
    Pulse(u32),
    Alarm,
}

impl What {
    fn data(self) -> EventData {
        let (kind, number) = match self {
            What::Listener(at) => (1, at),
            What::Stranger(at) => (2, at),
            What::Call(id) => (3, id),
            What::Link(id) => (4, id),
            What::Spare(id) => (5, id),
            What::Pulse(id) => (6, id),
            What::Alarm => (7, 0),
        };
        EventData::new_u64(kind << 32 | u64::from(number))
    }

    fn of(data: EventData) -> Option<What> {
        let data = data.u64();
        let number = u32::try_from(data & u64::from(u32::MAX)).ok()?;
        Some(match data >> 32 {
            1 => What::Listener(number),
            2 => What::Stranger(number),
            3 => What::Call(number),
            4 => What::Link(number),
            5 => What::Spare(number),
            6 => What::Pulse(number),
            7 => What::Alarm,
            _ => return None,
        })
    }
}

/// What has happened to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Happened {
    pub(crate) what: What,
    /// There is something to read, or an end.
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The other end sends no more, or is gone.
    pub(crate) closing: bool,
}

/// What is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interest {
    pub(crate) reading: bool,
    pub(crate) writing: bool,
}

impl Interest {
    pub(crate) const READING: Interest = Interest { reading: true, writing: false };
    pub(crate) const WRITING: Interest = Interest { reading: false, writing: true };

    fn flags(self) -> EventFlags {
        let mut flags = EventFlags::RDHUP;
        flags.set(EventFlags::IN, self.reading);
        flags.set(EventFlags::OUT, self.writing);
        flags
    }
}

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
        watch.add(&watch.alarm, What::Alarm, Interest::READING)?;
        Ok(watch)
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Closing a descriptor takes it out again.
    ///
    /// # Errors
    /// The system has no memory.
    pub(crate) fn add(
        &self,
        fd: impl AsFd,
        what: What,
        interest: Interest,
    ) -> Result<(), LinkError> {
        epoll::add(&self.epoll, fd, what.data(), interest.flags())
            .map_err(|e| system("epoll_ctl", e))
    }

    /// Waits for something else from now on, or for another purpose.
    pub(crate) fn change(&self, fd: impl AsFd, what: What, interest: Interest) {
        // It was added, and changing takes no memory.
        let changed = epoll::modify(&self.epoll, fd, what.data(), interest.flags());
        debug_assert!(changed.is_ok(), "{changed:?}");
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

    /// What has happened, at most so much as `list` has room for; does not wait.
    pub(crate) fn look(&self, list: &mut [Option<Happened>; EVENTS]) -> usize {
        let mut space = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space, Some(&now)) else { return 0 };
        let ends = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        let mut count = 0;
        for event in events {
            // The structure is packed.
            let (data, flags) = (event.data, event.flags);
            let Some(what) = What::of(data) else { continue };
            list[count] = Some(Happened {
                what,
                readable: flags.intersects(EventFlags::IN | ends),
                writable: flags.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR),
                closing: flags.intersects(ends),
            });
            count += 1;
        }
        count
    }

    /// Room for [`look`](Watch::look).
    pub(crate) fn list() -> [Option<Happened>; EVENTS] {
        [None; EVENTS]
    }
}
