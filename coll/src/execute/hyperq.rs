//! Collectives of ranks whose buffers lie on one GPU: gathered into a buffer of one of them, combined there, and
//! scattered, by copies of two kinds ([`crate::hyperq`]).
//!
//! The ranks share a few words of memory ([`sm`](crate::sm) has them behind its slots). Each says there that it has
//! come, with which GPU; the leader says who copies by which kind. Every rank acts on its own memory: it copies to and
//! from the leader's buffer by a mapping, or to and from staging memory that all share; the leader moves data between
//! its staging memory and its buffer.
//!
//! # GPU leaders
//! If processes take turns on the GPU, each copy of another process waits for its turn. So one process on the GPU, its
//! *GPU leader*, can do all the work: the others lend it their buffers, which it maps. If buffers lie on several GPUs,
//! each has a GPU leader, and these read what the others have combined ([`Mode::Led`]). The leader of the call is one
//! of them, the *root leader*, and tells the others when to go on (`root_leader`, `gpu_leader`). It waits until all
//! ranks are there, and knows then which way to go; the ranks learn it by its first order.
//!
//! # When ranks' buffers lie elsewhere
//! A rank knows where its own buffers lie, and nothing of the others'. So one whose buffers are not all on one GPU
//! [says so](HyperQ::decline), and goes on by other means at once. The others come to [`Outcome::Elsewhere`], before
//! anything was written to their buffers, and go on by the same means. So do all if the leader has no memory, or
//! another rank cannot map it.
//!
//! Calls that have no leader's buffer (blocks of different lengths, neighbours), and those that are not blocking, do not
//! stay on a GPU: their ranks find out whether all have buffers on devices, and then go by messages (`meeting`).
//!
//! # Failures
//! A rank that fails says so; the leader tells all others who is to blame. The leader notices ranks that are lost, and
//! the others notice the leader's loss. Whoever returns has nothing in flight, and nothing works on its buffers: of a
//! GPU leader that is lost, the transport says when. If a rank comes later than that, it finds the leader's last word.
//! A call that does not fit the other ranks' calls waits for them, as messages do.

mod control;
#[allow(
    unsafe_code,
    reason = "has devices, engines and reducers work on memory that callers of `HyperQ::begin` grant, and on a leader's"
)]
mod copies;
mod gpu_leader;
mod leader;
mod meeting;
mod member;
mod moments;
mod part;
mod peer;
mod root_leader;
#[allow(
    unsafe_code,
    reason = "allocates memory of a device, and frees it; lends what the caller of `HyperQ::begin` grants"
)]
mod space;

use std::sync::Arc;
use std::task::Poll;

use gapless_engine::{Engine, Reducer, Typed};
use gapless_mem::Space;
use gapless_pml::{Comm, Pml};

use super::call_buffers::{BufferBlocks, CallBuffers, Combine};
use super::error::CollError;
use crate::build::rows;
use crate::call::Call;
use crate::hyperq::{
    Dynamic, Fixed, Frame, HyperQStep, Kind, Memory, Mode, Policy, Settings, Staging,
};
use crate::schedule::Buffer;
pub(in crate::execute) use control::Control;
use control::SETTLED;
use copies::Mover;
use leader::Leading;
use meeting::Meeting;
use member::Following;
use moments::Moments;
use part::{CallPart, Members};
use root_leader::{Led, RootLeader, Wanted};
use space::{LeaderState, MappedLeader};

/// How a call of [`HyperQ`] has ended without an error: done, or left to other means by all ranks alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// Nothing was done: some rank's buffers are not on this GPU. All ranks do it by other means.
    Elsewhere,
    /// Nothing was done, and all ranks' buffers are in memory of devices: all ranks do it by messages.
    ByMessages,
}

/// The same, and how it has failed.
#[derive(Debug)]
enum Ended {
    Done,
    Elsewhere,
    ByMessages,
    Failed(CollError),
}

#[derive(Debug)]
enum Role {
    /// GPU leaders may do it; if not, it leads.
    Directs(Box<RootLeader>),
    Leads(Box<Leading>),
    Follows(Box<Following>),
}

/// What a rank works with beside its part of a call.
struct Tools<'a> {
    pml: &'a mut Pml,
    reducer: &'a dyn Reducer,
    mover: Mover<'a>,
    control: &'a Control,
    members: &'a Members,
    lead: &'a mut LeaderState,
    /// By leader, or GPU leader.
    mapped: &'a mut [Option<MappedLeader>],
    now_ns: u64,
}

/// One rank's place among ranks that may share a GPU.
#[derive(Debug)]
pub struct HyperQ {
    control: Control,
    members: Members,
    settings: Settings,
    memory: Memory,
    lead: LeaderState,
    /// By leader: what is mapped of its memory.
    mapped: Vec<Option<MappedLeader>>,
    /// The call that is under way.
    going: Option<(CallPart, Role)>,
    /// The same, of a call that does not stay on the GPU.
    meeting: Option<Meeting>,
    copied: Option<[[usize; 2]; 2]>,
    took_ns: Option<[u64; 2]>,
    moments: Moments,
    /// Whether buffers were on several GPUs when this rank was the last leader of a call.
    several: Option<bool>,
    /// How many GPUs that call's GPU leaders have used.
    gpus: Option<usize>,
    /// Calls in a row that GPU leaders could not do.
    refusals: u32,
}

/// So often GPU leaders try again what some rank could not lend or map.
const REFUSALS_MAX: u32 = 4;

/// All blocks of a call's buffers.
fn blocks_of(buffers: &CallBuffers) -> impl Iterator<Item = &Typed> {
    let each = |blocks| match blocks {
        &BufferBlocks::None => &[],
        BufferBlocks::Whole(typed) => std::slice::from_ref(typed),
        BufferBlocks::Each(each) => &each[..],
    };
    [&buffers.send, &buffers.recv].into_iter().flat_map(each)
}

/// The space of all of a call's buffers, if they have one in common that is not the host's.
fn space_of(buffers: &CallBuffers) -> Option<Space> {
    let mut all = blocks_of(buffers);
    let space = all.next().map(Typed::space)?;
    (!space.cpu_accessible() && all.all(|typed| typed.space() == space)).then_some(space)
}

impl HyperQ {
    pub(in crate::execute) fn new(control: Control, comm: Comm, settings: Settings) -> HyperQ {
        let (me, ranks) = (comm.rank() as usize, comm.size() as usize);
        let members = Members { comm, me, ranks };
        let mapped = (0..ranks).map(|_| None).collect();
        let (memory, lead) = Default::default();
        HyperQ {
            control,
            members,
            settings,
            memory,
            lead,
            mapped,
            going: None,
            meeting: None,
            copied: None,
            took_ns: None,
            moments: Moments::default(),
            several: None,
            gpus: None,
            refusals: 0,
        }
    }

    /// Whether ranks ask each other where their buffers lie before a call like this. All ranks agree.
    #[must_use]
    pub fn asks(settings: &Settings, call: &Call<'_>, ranks: usize) -> bool {
        let is_asked = match Frame::new(call, ranks) {
            Some(frame) => frame.gather_bytes() >= settings.bytes_min,
            // How long these are is not known to all ranks.
            None => matches!(
                call,
                Call::Gatherv { .. }
                    | Call::Scatterv { .. }
                    | Call::Allgatherv { .. }
                    | Call::Alltoallv { .. }
                    | Call::NeighborAllgather { .. }
                    | Call::NeighborAlltoall { .. }
            ),
        };
        settings.mode != Mode::Off && is_asked
    }

    /// Whether a blocking call may stay on the GPU; otherwise ranks [meet](HyperQ::meet) alone. All ranks agree.
    pub(crate) fn may_stay(&self, call: &Call<'_>) -> bool {
        Frame::new(call, self.members.ranks).is_some()
    }

    /// Whether buffers lie in memory of devices alone. Of a call without bytes: whether the process has a device.
    pub(crate) fn on_devices(buffers: &CallBuffers, pml: &mut Pml) -> bool {
        let mut blocks = blocks_of(buffers).filter(|typed| typed.packed_bytes() > 0).peekable();
        let any = blocks.peek().is_some() || !pml.bml_mut().devices().is_empty();
        any && blocks.all(|typed| !typed.space().cpu_accessible())
    }

    /// Begins to find out whether all ranks' buffers lie in memory of devices, as this rank's do;
    /// [`advance`](HyperQ::advance) says so.
    ///
    /// # Errors
    /// Nothing has begun: [`CollError::Abandoned`], [`CollError::Revoked`].
    pub fn meet(&mut self, number: u64) -> Result<(), CollError> {
        if self.going.is_some() || self.meeting.is_some() {
            return Err(CollError::Abandoned);
        }
        if self.members.comm.is_revoked() {
            return Err(CollError::Revoked);
        }
        self.meeting = Some(Meeting::new(number, self.members.me, &self.control));
        Ok(())
    }

    /// This rank does the call by other means.
    pub fn decline(&self, number: u64) {
        self.control.arrive(self.members.me, number, None, false);
    }

    /// The space of the buffers, if they are on one device. Whoever has devices that are opened late opens this.
    #[must_use]
    pub fn space(buffers: &CallBuffers) -> Option<Space> {
        space_of(buffers)
    }

    /// Begins a call that ranks [ask](HyperQ::asks) each other about; [`advance`](HyperQ::advance) carries it out.
    /// `number`: as for [`SharedSegment::begin`](crate::sm::SharedSegment::begin). Gives whether it has begun. If not,
    /// the rank has [declined](HyperQ::decline).
    ///
    /// # Safety
    /// As for [`SharedSegment::begin`](crate::sm::SharedSegment::begin): until `advance` gives [`Poll::Ready`], or
    /// [`give_up`](HyperQ::give_up) says that all buffers are free.
    ///
    /// # Errors
    /// Nothing has begun: arguments that do not fit; [`CollError::Abandoned`], [`CollError::Revoked`],
    /// [`CollError::NotShared`].
    #[allow(unsafe_code, reason = "takes the caller's promise")]
    pub unsafe fn begin(
        &mut self,
        number: u64,
        call: &Call<'_>,
        (buffers, combine): (CallBuffers, Option<Combine>),
        pml: &mut Pml,
    ) -> Result<bool, CollError> {
        let Members { me, ranks, .. } = self.members;
        if self.going.is_some() || self.meeting.is_some() {
            return Err(CollError::Abandoned);
        }
        if self.members.comm.is_revoked() {
            return Err(CollError::Revoked);
        }
        call.check(me, ranks).map_err(|error| CollError::Call { error })?;
        let refused = CollError::NotShared { operation: call.operation() };
        let frame = Frame::new(call, ranks).ok_or(refused)?;
        let (send, recv) = rows(call, me, ranks);
        buffers.send.check(Buffer::Send, &send)?;
        buffers.recv.check(Buffer::Recv, &recv)?;
        if let Some(unit) = call.reduction().map(|of| of.unit) {
            let given = combine.as_ref().map(Combine::bytes);
            if given.is_none_or(|bytes| bytes == 0 || !unit.is_multiple_of(bytes)) {
                return Err(CollError::Combine { unit, given });
            }
        }
        let devices = pml.bml_mut().devices();
        let device =
            space_of(&buffers).and_then(|space| devices.iter().find(|it| it.space() == space));
        let Some((device, gpu)) = device.and_then(|it| Some((Arc::clone(it), it.identity()?)))
        else {
            self.decline(number);
            return Ok(false);
        };
        let staging = Staging::new(&frame, ranks);
        let commutes = call.reduction().is_none_or(|of| of.commutative);
        let part = CallPart { frame, staging, number, me, gpu, device, buffers, combine, commutes };
        let role = match frame.leader == me {
            true => self.leads(&part),
            false => Role::Follows(Box::new(Following::new())),
        };
        self.control.arrive(me, number, Some(gpu), part.is_plain());
        self.going = Some((part, role));
        Ok(true)
    }

    /// How a leader begins.
    fn leads(&mut self, part: &CallPart) -> Role {
        self.gpus = None;
        let (device, Settings { mode, table, .. }) = (&part.device, &self.settings);
        // Where all share one GPU, a measured table is followed.
        let wanted = match mode {
            Mode::Led => Some(true),
            Mode::Auto => Some(!table.knows(&device.properties().name, !device.takes_turns())),
            _ => None,
        };
        let fits = part.is_plain() && self.refusals < REFUSALS_MAX;
        match wanted.filter(|_| fits) {
            Some(alone) if alone || self.several != Some(false) => {
                Role::Directs(Box::new(RootLeader::new(Wanted { alone })))
            }
            _ => self.copies(part),
        }
    }

    /// Has all copy.
    fn copies(&mut self, part: &CallPart) -> Role {
        let [gather, scatter] = self.policies(part);
        Role::Leads(Box::new(Leading::new(self.members.ranks, gather, scatter)))
    }

    /// How the leader decides in both steps.
    fn policies(&mut self, part: &CallPart) -> [Policy; 2] {
        let CallPart { frame, staging, device, .. } = part;
        let (model, mps) = (&*device.properties().name, !device.takes_turns());
        let Settings { mode, table, .. } = &self.settings;
        let ranks = self.members.ranks;
        let counts = |step, copies, bytes| table.counts((model, mps), step, (ranks, copies), bytes);
        let mut policy = |step, bytes| {
            let copies = frame.copies(step);
            match mode {
                Mode::Static => Policy::Fixed(counts(step, copies, bytes)),
                Mode::Auto if table.knows(model, mps) => Policy::Fixed(counts(step, copies, bytes)),
                Mode::Dynamic => Policy::Dynamic(Dynamic::new(copies, step)),
                Mode::Auto | Mode::Remembering | Mode::Led | Mode::Off => {
                    self.memory.policy(step, bytes, copies)
                }
            }
        };
        let gather = policy(HyperQStep::Gather, frame.gather_bytes());
        let scatter = match staging.can_mirror() {
            true => policy(HyperQStep::Scatter, frame.scatter_bytes()),
            false => Policy::Fixed(Fixed::new(0, frame.copies(HyperQStep::Scatter))),
        };
        [gather, scatter]
    }

    /// The call that is under way, and what this rank's part of it works with.
    fn parts<'a>(
        &'a mut self,
        (pml, engine, reducer): (&'a mut Pml, &'a dyn Engine, &'a dyn Reducer),
        now_ns: u64,
    ) -> Option<(&'a CallPart, &'a mut Role, Tools<'a>)> {
        let HyperQ { control, members, lead, mapped, going, .. } = self;
        let (part, role) = going.as_mut()?;
        let mover = Mover { engine, device: &part.device, buffers: &part.buffers };
        let tools = Tools { pml, reducer, mover, control, members, lead, mapped, now_ns };
        Some((part, role, tools))
    }

    /// Goes on as far as it can without waiting. Gives a result once. `now_ns`: of any clock that goes on; by it is
    /// learned what is quick.
    ///
    /// # Errors
    /// See [`CollError`]; with the error all buffers are free again.
    pub fn advance(
        &mut self,
        pml: &mut Pml,
        engine: &dyn Engine,
        reducer: &dyn Reducer,
        now_ns: u64,
    ) -> Poll<Result<Outcome, CollError>> {
        if let Some(meeting) = &mut self.meeting {
            let ended = match self.members.comm.is_revoked() {
                true => Ended::Failed(CollError::Revoked),
                false => match meeting.advance(&self.members, &self.control, pml) {
                    None => return Poll::Pending,
                    Some(ended) => ended,
                },
            };
            return Poll::Ready(self.end(ended));
        }
        if self.going.is_some() && self.members.comm.is_revoked() {
            if let Some((part, Role::Follows(following), mut tools)) =
                self.parts((pml, engine, reducer), now_ns)
            {
                following.drain();
                // Its GPU leader gives up as well, and says so.
                if !following.let_go(part, &mut tools) {
                    return Poll::Pending;
                }
            }
            self.going.take_if(|(_, role)| matches!(role, Role::Follows(_)));
            self.give_up();
            return Poll::Ready(Err(CollError::Revoked));
        }
        if let Some(declined) = self.direct(pml, engine, reducer, now_ns) {
            match declined {
                Poll::Ready(Some(ended)) => return Poll::Ready(self.end(ended)),
                Poll::Ready(None) => {}
                Poll::Pending => return Poll::Pending,
            }
        }
        let Some((part, role, mut tools)) = self.parts((pml, engine, reducer), now_ns) else {
            return Poll::Ready(Ok(Outcome::Done));
        };
        let ended = match role {
            Role::Leads(leading) => leading.advance(part, &mut tools),
            Role::Directs(_) => None,
            Role::Follows(following) => following.advance(part, &mut tools),
        };
        let Some(ended) = ended else { return Poll::Pending };
        if let Some((part, Role::Leads(mut leading))) = self.going.take() {
            match &ended {
                Ended::Done => {
                    self.learn(&part.frame, &leading);
                    self.moments = std::mem::take(leading.moments());
                }
                // Where they are is found out anew.
                _ => self.several = None,
            }
        }
        Poll::Ready(self.end(ended))
    }

    fn end(&mut self, ended: Ended) -> Result<Outcome, CollError> {
        (self.going, self.meeting) = (None, None);
        match ended {
            Ended::Done => Ok(Outcome::Done),
            Ended::Elsewhere => Ok(Outcome::Elsewhere),
            Ended::ByMessages => Ok(Outcome::ByMessages),
            Ended::Failed(error) => Err(error),
        }
    }

    /// A root leader's part of a call that GPU leaders carry out, if it may be one: how it has ended; `None`: all are
    /// to copy.
    fn direct(
        &mut self,
        pml: &mut Pml,
        engine: &dyn Engine,
        reducer: &dyn Reducer,
        now_ns: u64,
    ) -> Option<Poll<Option<Ended>>> {
        let Some((part, Role::Directs(root_leader), mut tools)) =
            self.parts((pml, engine, reducer), now_ns)
        else {
            return None;
        };
        let Some(led) = root_leader.advance(part, &mut tools) else { return Some(Poll::Pending) };
        let (cannot, [begin, combined, over]) = (root_leader.cannot, root_leader.times);
        Some(Poll::Ready(match led {
            Led::Ended(ended, gpus) => {
                self.refusals = if cannot { self.refusals + 1 } else { 0 };
                self.several = None;
                if let (Ended::Done, Some(begin), Some(over)) = (&ended, begin, over) {
                    let combined = combined.unwrap_or(over);
                    self.took_ns = Some([combined.saturating_sub(begin), over - combined]);
                    self.several = Some(gpus > 1);
                    self.gpus = Some(gpus);
                    self.copied = None;
                    self.moments = Moments::default();
                }
                Some(ended)
            }
            Led::Declined { several } => {
                self.several = Some(several);
                let (part, _) = self.going.take()?;
                let role = self.copies(&part);
                self.going = Some((part, role));
                None
            }
        }))
    }

    #[expect(clippy::cast_precision_loss, reason = "times of calls")]
    fn learn(&mut self, frame: &Frame, leading: &Leading) {
        let [(gather, gathered), (scatter, scattered)] = leading.learned();
        self.took_ns = gathered.zip(scattered).map(|(gather, scatter)| [gather, scatter]);
        let counts = |policy: &Policy| [Kind::Staged, Kind::Ipc].map(|kind| policy.count(kind));
        self.copied = Some([counts(gather), counts(scatter)]);
        let steps = [
            (HyperQStep::Gather, frame.gather_bytes()),
            (HyperQStep::Scatter, frame.scatter_bytes()),
        ];
        for ((step, bytes), (policy, ns)) in steps.into_iter().zip(leading.learned()) {
            let copies = frame.copies(step);
            if let Some(ns) = ns.filter(|_| copies > 0) {
                self.memory.learn(step, bytes, copies, policy, ns as f64);
            }
        }
    }

    /// Whether [`advance`](HyperQ::advance) would get on, as far as a few loads tell.
    #[must_use]
    pub fn look(&self) -> bool {
        if let Some(meeting) = &self.meeting {
            return self.members.comm.is_revoked() || meeting.look(&self.members, &self.control);
        }
        let Some((part, role)) = &self.going else { return true };
        self.members.comm.is_revoked()
            || match role {
                Role::Directs(root_leader) => root_leader.look(part, &self.control, &self.members),
                Role::Leads(leading) => leading.look(part, &self.control, &self.members),
                Role::Follows(following) => following.look(part, &self.control),
            }
    }

    /// Gives up what is under way: waits for this rank's copies. Ranks that wait for this one go on waiting. Gives
    /// whether all buffers are free: a GPU leader may work on those that this rank has lent it, until it has ended or
    /// given up. Then ask again; if the GPU leader is lost, nobody says so.
    pub fn give_up(&mut self) -> bool {
        self.meeting = None;
        let Some((part, role)) = &mut self.going else { return true };
        match role {
            Role::Directs(root_leader) => {
                root_leader.drain();
                self.control.report(part.me, part.number, SETTLED);
            }
            Role::Leads(leading) => leading.drain(),
            Role::Follows(following) => {
                following.drain();
                following.tell_settled(part, &self.control);
                if following.is_lent(part, &self.control) {
                    return false;
                }
            }
        }
        self.going = None;
        true
    }

    /// In the last call that this rank has led: how many copies of the gather were host-staged, and how many went by
    /// IPC; and of the scatter.
    #[must_use]
    pub fn copied(&self) -> Option<[[usize; 2]; 2]> {
        self.copied
    }

    /// How many GPUs the GPU leaders of the last call have used that this rank has led, if GPU leaders carried it out.
    #[must_use]
    pub fn gpus(&self) -> Option<usize> {
        self.gpus
    }

    /// Of the same call: nanoseconds of the gather, from when all ranks were there, and of the scatter.
    #[must_use]
    pub fn took_ns(&self) -> Option<[u64; 2]> {
        self.took_ns
    }

    /// Of the same call: who arrived, whose copies began and ended, and when, in microseconds.
    #[must_use]
    pub fn told(&self) -> String {
        self.moments.to_string()
    }

    /// Frees its memory, as far as peers have let go; for a communicator that is freed. Whether nothing is left: if
    /// not, poll and ask again, or that memory is never freed.
    pub fn close(&mut self, pml: &mut Pml) -> bool {
        self.mapped.iter_mut().for_each(|mapped| *mapped = None);
        self.lead.close(pml.bml_mut())
    }
}

impl Drop for HyperQ {
    fn drop(&mut self) {
        self.give_up();
    }
}
