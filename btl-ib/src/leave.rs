//! Leaving: what was sent arrives, then a farewell.

use crate::header::MessageKind;
use crate::ib::Ib;
use crate::link::{IbLink, LinkState};
use std::time::{Duration, Instant};

impl Drop for Ib {
    /// Says farewell on every link, and waits until the peers' adapters have all that was sent: at most for
    /// [`IbConfig::notice`](crate::IbConfig::notice). Peers need not poll for that.
    fn drop(&mut self) {
        let count = u32::try_from(self.links.len()).unwrap_or(u32::MAX);
        for id in 0..count {
            let Some(up) = self.links[id as usize].up() else { continue };
            if up.is_open()
                && let Err(error) = up.say(id, MessageKind::Farewell)
            {
                self.end(id, error);
            }
        }
        let until = Instant::now() + self.config.notice;
        while self.is_speaking() && Instant::now() < until {
            self.look();
            self.outbox.clear();
            std::thread::sleep(Duration::from_micros(20));
        }
        // Queue pairs are destroyed before memory that they work on.
        for link in &mut self.links {
            if let LinkState::Up(up) = &mut link.state {
                up.qp.abandon();
            }
        }
        self.links.clear();
        self.draining.clear();
    }
}

impl Ib {
    fn is_speaking(&mut self) -> bool {
        let links = self.links.iter_mut();
        links.filter_map(IbLink::up).any(|up| up.ending.is_none() && !up.posted.is_empty())
    }
}
