//! Making and freeing communicators (MPI 4.1 §7.4, §7.6).

use super::{COMMS, Comm, CommObject};
use crate::arg::{self, HandleOut, lock};
use crate::call::{Done, Fail, Subject};
use crate::errhandler::{Handler, HandlerSlot, Kind};
use crate::face::{self, RawHandle};
use crate::group::{self, GroupHandle};
use crate::info::{Info, InfoObject};
use crate::p2p::{self, Owner};
use crate::request::{self, Place, State, Work};
use crate::session;
use crate::slots::Object;
use gapless::coll::Level;
use gapless::{Communicator, PmlError, raw};
use std::ffi::{CStr, CString, c_int};
use std::sync::{Arc, Mutex};

/// Gives the program a handle of a new communicator, or `MPI_COMM_NULL`.
fn give(made: Option<CommObject>, newcomm: HandleOut) -> Done {
    newcomm.set(match made {
        Some(made) => COMMS.insert(made)?,
        None => face::COMM_NULL,
    });
    Ok(())
}

impl CommObject {
    /// A communicator that was made of this one, whose error handler it has (MPI 4.1 §9.3).
    fn child(&self, made: Communicator) -> CommObject {
        CommObject::new(made, self.errhandler.get(), "")
    }

    /// Gives the program a handle of such a one.
    pub(crate) fn give_child(&self, made: Option<Communicator>, newcomm: HandleOut) -> Done {
        give(made.map(|made| self.child(made)), newcomm)
    }
}

pub(crate) fn comm_dup(comm: Comm, newcomm: HandleOut) -> Done {
    comm_dup_with_info(comm, None, newcomm)
}

pub(crate) fn comm_dup_with_info(comm: Comm, info: Option<Info>, newcomm: HandleOut) -> Done {
    let mut made = comm.child(comm.comm.dup()?);
    let attributes = comm.attributes.copy(comm.handle());
    made.attributes = attributes.inspect_err(|_| drop(made.comm.clone().free()))?;
    made.hints.set(info);
    give(Some(made), newcomm)
}

/// Communicators that are being made, which have a handle and an error handler already: programs set it at once.
static UNMADE: Mutex<Vec<(RawHandle, Arc<HandlerSlot>)>> = Mutex::new(Vec::new());

/// The error handler of such a communicator.
pub(crate) fn of_unmade(comm: RawHandle) -> Option<Arc<HandlerSlot>> {
    lock(&UNMADE).iter().find(|(its, _)| *its == comm).map(|(_, slot)| Arc::clone(slot))
}

/// Such a communicator, until it is made, or cannot be.
struct Unmade(RawHandle);

impl Drop for Unmade {
    fn drop(&mut self) {
        lock(&UNMADE).retain(|(its, _)| *its != self.0);
    }
}

pub(crate) fn comm_idup(comm: Comm, newcomm: HandleOut, request: Place) -> Done {
    comm_idup_with_info(comm, None, newcomm, request)
}

pub(crate) fn comm_idup_with_info(
    comm: Comm,
    info: Option<Info>,
    newcomm: HandleOut,
    request: Place,
) -> Done {
    let mut reserved = COMMS.reserve()?;
    let started = raw::Request::dup(&comm.comm)?;
    // Attributes are those of now (MPI 4.1 §7.4.2). If they cannot be copied, the request says so: other processes wait
    // for this one.
    let attributes = comm.attributes.copy(comm.handle());
    let errhandler = Arc::new(HandlerSlot::new(comm.errhandler.get()));
    newcomm.set(reserved.tell());
    lock(&UNMADE).push((reserved.handle(), Arc::clone(&errhandler)));
    let in_making = Unmade(reserved.handle());
    let subject = Subject::OfComm(comm.clone());
    let then = move |request: &mut raw::Request| {
        let made = request.made().ok_or(PmlError::Bug { what: "a duplicate for nobody" })?;
        let mut made = CommObject { errhandler, ..comm.child(made) };
        made.attributes = attributes.inspect_err(|_| drop(made.comm.clone().free()))?;
        made.hints.set(info);
        drop(in_making);
        reserved.fill(made);
        Ok(())
    };
    request.give_state(subject, State::then(Work::One(started), Box::new(then)));
    Ok(())
}

pub(crate) fn comm_create(comm: Comm, group: GroupHandle, newcomm: HandleOut) -> Done {
    comm.give_child(comm.comm.create(&group)?, newcomm)
}

pub(crate) fn comm_create_group(
    comm: Comm,
    group: GroupHandle,
    tag: c_int,
    newcomm: HandleOut,
) -> Done {
    // Who is in no group gets none.
    let made = match group.rank_of(group::me()?) {
        Some(_) => Some(comm.comm.create_group(&group, tag)?),
        None => None,
    };
    comm.give_child(made, newcomm)
}

pub(crate) fn comm_split(comm: Comm, color: c_int, key: c_int, newcomm: HandleOut) -> Done {
    let color = match u32::try_from(color) {
        Ok(color) => Some(color),
        Err(_) if color == face::UNDEFINED => None,
        Err(_) => return Err(Fail::new(face::ERR_ARG, format!("color is {color}"))),
    };
    comm.give_child(comm.comm.split(color, key)?, newcomm)
}

/// Names of kinds of hardware, as infos have them.
const SHARED: &str = "mpi_shared_memory";
const LEVELS: [(&str, Level); 4] = [
    ("gapless://host", Level::Host),
    ("gapless://socket", Level::Socket),
    ("gapless://numa", Level::Numa),
    ("gapless://l3", Level::L3),
];

/// How members are divided.
enum Parts {
    Shared,
    Color(Option<u32>),
}

impl CommObject {
    /// The color of this process if groups of a level are parts.
    fn color_of(&self, level: Level) -> Option<u32> {
        let me = self.comm.rank() as usize;
        let mut groups = self.comm.locality().groups(level)?.iter();
        u32::try_from(groups.position(|group| group.contains(&me))?).ok()
    }

    /// Parts that share a kind of hardware with this name.
    fn parts_of(&self, resource: &str) -> Parts {
        let level = LEVELS.into_iter().find(|(name, _)| *name == resource);
        match level {
            Some((_, level)) => Parts::Color(self.color_of(level)),
            None if resource == SHARED => Parts::Shared,
            None => Parts::Color(None),
        }
    }

    /// Parts that are in different process sets.
    fn parts_of_set(&self, name: &str) -> Done<Parts> {
        let name = CString::new(name).unwrap_or_default();
        let set = session::pset(&name)?;
        Ok(Parts::Color(set.process(0)))
    }
}

pub(crate) fn comm_split_type(
    comm: Comm,
    split_type: c_int,
    key: c_int,
    info: Option<Info>,
    newcomm: HandleOut,
) -> Done {
    let asked = |key: &str| info.as_ref().and_then(|info: &Info| info.get(key));
    let resource = asked("mpi_hw_resource_type");
    let parts = match (split_type, resource) {
        (face::UNDEFINED, _) => Parts::Color(None),
        (face::COMM_TYPE_SHARED, _) => Parts::Shared,
        (face::COMM_TYPE_HW_GUIDED | face::COMM_TYPE_RESOURCE_GUIDED, Some(resource)) => {
            comm.parts_of(&resource)
        }
        (face::COMM_TYPE_HW_GUIDED, None) => Parts::Color(None),
        (face::COMM_TYPE_RESOURCE_GUIDED, None) => match asked("mpi_pset_name") {
            Some(set) => comm.parts_of_set(&set)?,
            None => Parts::Color(None),
        },
        // The coarsest level that divides the members.
        (face::COMM_TYPE_HW_UNGUIDED, _) => {
            let level = comm.comm.locality().dividing().first().copied();
            let name = LEVELS.into_iter().find(|(_, its)| Some(*its) == level);
            if let (Some(info), Some((name, _))) = (&info, name) {
                info.tell(c"mpi_hw_resource_type", name);
            }
            Parts::Color(level.and_then(|level| comm.color_of(level)))
        }
        _ => return Err(Fail::new(face::ERR_ARG, format!("split_type is {split_type}"))),
    };
    let made = match parts {
        // Of two sides, those that are on a host.
        Parts::Shared if comm.comm.is_inter() => {
            comm.comm.split(arg::process()?.comm_world.color_of(Level::Host), key)?
        }
        Parts::Shared => Some(comm.comm.split_shared(key)?),
        Parts::Color(color) => comm.comm.split(color, key)?,
    };
    comm.give_child(made, newcomm)
}

/// Kinds of hardware, and whether this process is kept on one of each.
pub(crate) fn get_hw_resource_info(hw_info: HandleOut) -> Done {
    let locality = arg::process()?.comm_world.comm.locality();
    let known = |level| if locality.groups(level).is_some() { "true" } else { "false" };
    let levels = LEVELS.into_iter().map(|(name, level)| (name, known(level)));
    InfoObject::of(levels.chain([(SHARED, "true")])).give(hw_info)
}

/// A tag for what is made outside of any communicator: far from those that programs like.
fn tag_of(text: &CStr) -> Done<c_int> {
    if text.count_bytes() >= face::MAX_STRINGTAG_LEN as usize {
        return Err(Fail::new(face::ERR_ARG, "stringtag is too long"));
    }
    // FNV-1a.
    let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    let hash = text.to_bytes().iter().fold(0x811c_9dc5, mix);
    Ok((hash & 0x3fff_ffff | 0x4000_0000).cast_signed())
}

pub(crate) fn comm_create_from_group(
    group: GroupHandle,
    stringtag: &CStr,
    info: Option<Info>,
    errhandler: Handler,
    newcomm: HandleOut,
) -> Done {
    let (tag, errhandler) = (tag_of(stringtag)?, errhandler.fits(Kind::Comm)?);
    if group.size() == 0 {
        return give(None, newcomm);
    }
    let world = &arg::process()?.comm_world.comm;
    give_of_groups(world.create_group(&group, tag), errhandler, info, newcomm)
}

/// Gives the program a handle of what was made outside of any communicator.
fn give_of_groups(
    made: Result<Communicator, gapless::Error>,
    errhandler: Handler,
    info: Option<Info>,
    newcomm: HandleOut,
) -> Done {
    let told = Subject::Handler(errhandler.clone(), face::COMM_NULL);
    let made = made.map_err(|error| Fail::from(error).on(told))?;
    let made = CommObject::new(made, errhandler, "");
    made.hints.set(info);
    give(Some(made), newcomm)
}

pub(crate) fn intercomm_create_from_groups(
    local_group: GroupHandle,
    local_leader: c_int,
    remote_group: GroupHandle,
    remote_leader: c_int,
    stringtag: &CStr,
    info: Option<Info>,
    errhandler: Handler,
    newintercomm: HandleOut,
) -> Done {
    let (tag, errhandler) = (tag_of(stringtag)?, errhandler.fits(Kind::Comm)?);
    let leader = arg::rank(local_leader, local_group.size(), "local_leader")?;
    let remote = arg::rank(remote_leader, remote_group.size(), "remote_leader")?;
    let remote = remote_group.process(remote).unwrap_or(remote);
    let world = &arg::process()?.comm_world.comm;
    let make = || {
        let local = world.create_group(&local_group, tag)?;
        let made = local.intercomm(leader, world, remote, tag);
        local.free()?;
        made
    };
    give_of_groups(make(), errhandler, info, newintercomm)
}

pub(crate) fn intercomm_create(
    local_comm: Comm,
    local_leader: c_int,
    peer_comm: RawHandle,
    remote_leader: c_int,
    tag: c_int,
    newintercomm: HandleOut,
) -> Done {
    let local = &local_comm.comm;
    let leader = arg::rank(local_leader, local.size(), "local_leader")?;
    // Only the leader's are looked at.
    let made = match leader == local.rank() {
        true => {
            let peer = arg::comm(peer_comm, "peer_comm")?;
            let remote = arg::rank(remote_leader, peer.peers(), "remote_leader")?;
            local.intercomm(leader, &peer.comm, remote, tag)
        }
        false => local.intercomm(leader, local, 0, tag),
    };
    local_comm.give_child(Some(made?), newintercomm)
}

pub(crate) fn intercomm_merge(intercomm: Comm, high: c_int, newintracomm: HandleOut) -> Done {
    intercomm.give_child(Some(intercomm.comm.merge(high != 0)?), newintracomm)
}

/// `MPI_Comm_free`, and `MPI_Comm_disconnect`, which waits for what is in flight (MPI 4.1 §11.10.4).
pub(crate) fn free(waits: bool, comm: HandleOut) -> Done {
    let freed = arg::comm(comm.get(), "comm")?;
    if let Object::Predefined(..) = freed {
        return Err(Fail::from(PmlError::PredefinedComm).on(Subject::Comm(freed.handle())));
    }
    let done = if waits { request::await_all(&freed) } else { Ok(()) };
    let done = done.and_then(|()| freed.attributes.delete_all(freed.handle()));
    let done = done.and_then(|()| Ok(freed.comm.clone().free()?));
    done.map_err(|fail| fail.on(Subject::Comm(freed.handle())))?;
    p2p::forget(Owner::Comm(freed.handle()))?;
    COMMS.free(freed.handle());
    comm.set(face::COMM_NULL);
    Ok(())
}
