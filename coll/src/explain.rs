//! A schedule as text that people can read.
use std::fmt;

use crate::schedule::{Action, Buffer, Place, Schedule};
use crate::together::{Together, Whom};

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Send => "send",
            Self::Recv => "recv",
            Self::Scratch => "scratch",
        })
    }
}

/// `recv[3][0..8]`: bytes 0 to 7 of block 3 of the receive buffer.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = self.start..self.start + self.len;
        match self.buffer {
            _ if self.len == 0 => write!(f, "nothing"),
            Buffer::Scratch => write!(f, "scratch[{range:?}]"),
            buffer => write!(f, "{buffer}[{}][{range:?}]", self.block),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { to, slot, from } => write!(f, "send     {from}  -> {to} #{slot}"),
            Self::Receive { from, slot, into } => write!(f, "receive  {into}  <- {from} #{slot}"),
            Self::Copy { from, into } => write!(f, "copy     {into} = {from}"),
            Self::Reduce { sources, into } => {
                write!(f, "reduce   {into} = ")?;
                for (index, source) in sources.iter().enumerate() {
                    let op = if index > 0 { " op " } else { "" };
                    write!(f, "{op}{source}")?;
                }
                Ok(())
            }
            Self::Put { to, slot, from } => write!(f, "put      {from}  -> task #{slot} at {to}"),
            Self::Task { from, slot, into } => {
                write!(f, "task     {into} = {into} op what {from} puts  #{slot}")
            }
            Self::Share { what, lead, from, into } => {
                let place = |place: &Place| match place.len {
                    0 => String::new(),
                    _ => place.to_string(),
                };
                // That of a leader writes nothing but what it gathers or combines.
                let leads = match what {
                    Together::Meet => false,
                    Together::Bcast | Together::Scatter => into.len == 0,
                    Together::Reduce | Together::Gather => into.len > 0,
                };
                let [from, into] = [from, into].map(place);
                match what {
                    Together::Meet => write!(f, "share    all of this host wait for all"),
                    Together::Bcast => write!(f, "share    {into}{from} of rank {lead}"),
                    Together::Reduce if into.is_empty() => {
                        write!(f, "share    {from}  -> combined at {lead}")
                    }
                    Together::Reduce => write!(f, "share    {into} = all ranks' {from}"),
                    Together::Gather if into.is_empty() => {
                        write!(f, "share    {from}  -> joined at {lead}")
                    }
                    Together::Gather => write!(f, "share    {into} = each rank's {from}"),
                    Together::Scatter if into.is_empty() => {
                        write!(f, "share    {from}  -> a piece for each rank")
                    }
                    Together::Scatter => write!(f, "share    {into} of what rank {lead} has"),
                }?;
                let part = what.part(leads);
                let whom = |whom: Whom| match whom {
                    Whom::Nobody => None,
                    Whom::Leader => Some(format!("rank {lead}")),
                    Whom::Others => Some("all".to_owned()),
                };
                let puts = part.puts.then(|| "put".to_owned());
                let signals = whom(part.signals).map(|it| format!("signal {it}"));
                let waits = whom(part.waits).map(|it| format!("wait for {it}"));
                let parts: Vec<String> = [puts, signals, waits].into_iter().flatten().collect();
                write!(f, "  [{}]", parts.join(", "))
            }
        }
    }
}

/// A line a step: number, what it does, and the steps it waits for. `#0` is the slot of a message or of a task.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}, ", self.rank(), self.ranks())?;
        match self.scratch() {
            0 => writeln!(f, "no scratch")?,
            bytes => writeln!(f, "{bytes} B of scratch")?,
        }
        for (step, (action, after)) in self.steps().enumerate() {
            write!(f, "{step:>3}  {action}")?;
            for (index, step) in after.iter().enumerate() {
                write!(f, "{}{step}", if index == 0 { "  after " } else { ", " })?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
