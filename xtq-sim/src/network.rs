//! The network: a link each way between every node and one switch, which forwards a packet as soon as it has its head.
//!
//! A link carries one packet at a time. Packets for one node wait at the switch for its port, in the order of arrival.

use crate::event::Event;
use crate::run::Sim;
use crate::time::Ps;

/// A packet on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    pub(crate) message: usize,
    /// Whether the message begins with it.
    pub(crate) first: bool,
    /// Bytes on the wire.
    bytes: u64,
    arrived: bool,
}

/// Links and packets.
#[derive(Debug, Default)]
pub(crate) struct Network {
    /// When the link of each node to the switch is free, and the one from the switch.
    up: Vec<Ps>,
    down: Vec<Ps>,
    pub(crate) flights: Vec<Flight>,
    pub(crate) traffic: Traffic,
}

/// What went through the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets that were sent.
    pub sent: u64,
    /// Packets that arrived.
    pub arrived: u64,
    /// Packets that arrived again.
    pub twice: u64,
    /// Bytes that were sent, headers included.
    pub bytes_sent: u64,
    /// Bytes that arrived.
    pub bytes_arrived: u64,
    /// Messages that were sent.
    pub messages: u64,
    /// Messages all of whose bytes are at their target.
    pub landed: u64,
}

impl Traffic {
    /// Whether each packet that went in came out once, and so for messages and bytes.
    #[must_use]
    pub fn is_conserved(&self) -> bool {
        (self.sent, self.bytes_sent, self.messages, 0)
            == (self.arrived, self.bytes_arrived, self.landed, self.twice)
    }
}

impl Network {
    pub(crate) fn new(nodes: usize) -> Network {
        Network { up: vec![Ps::ZERO; nodes], down: vec![Ps::ZERO; nodes], ..Network::default() }
    }
}

impl Sim<'_> {
    /// Puts a message on its node's link, a packet after the other. Answers how many packets, and when the last one has left.
    pub(crate) fn transmit(&mut self, message: usize, from: usize, bytes: u64) -> (u64, Ps) {
        let machine = *self.machine();
        let packets = bytes.div_ceil(machine.mtu).max(1);
        self.network.traffic.messages += 1;
        for number in 0..packets {
            let payload = machine.mtu.min(bytes - number * machine.mtu);
            let on_wire = payload + machine.header;
            let begins = self.network.up[from].max(self.now);
            self.network.up[from] = begins + machine.link.time(on_wire);
            let packet = self.network.flights.len();
            self.network.flights.push(Flight {
                message,
                first: number == 0,
                bytes: on_wire,
                arrived: false,
            });
            self.network.traffic.sent += 1;
            self.network.traffic.bytes_sent += on_wire;
            self.agenda.plan(begins + machine.wire + machine.switch, Event::Port { packet });
        }
        (packets, self.network.up[from])
    }

    /// A packet waits for the link to its node.
    pub(crate) fn at_port(&mut self, packet: usize) {
        let machine = *self.machine();
        let Flight { message, bytes, .. } = self.network.flights[packet];
        let to = self.messages[message].to;
        let begins = self.network.down[to].max(self.now);
        let ends = begins + machine.link.time(bytes);
        self.network.down[to] = ends;
        self.agenda.plan(ends + machine.wire, Event::Arrival { packet });
    }

    /// A packet is there: which it is.
    pub(crate) fn received(&mut self, packet: usize) -> Flight {
        let flight = self.network.flights[packet];
        let traffic = &mut self.network.traffic;
        traffic.arrived += 1;
        traffic.bytes_arrived += flight.bytes;
        traffic.twice += u64::from(flight.arrived);
        self.network.flights[packet].arrived = true;
        flight
    }
}
