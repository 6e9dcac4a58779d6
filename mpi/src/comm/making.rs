//! Making and freeing communicators (MPI 4.1 §7.4, §7.6).

use super::{COMMS, Comm, CommObject};
use crate::arg::{self, HandleOut};
use crate::call::{Done, Fail, Subject};
use crate::errhandler::{Handler, Kind};
use crate::face::{self, RawHandle};
use crate::group::{self, GroupHandle};
use crate::info::{Info, InfoObject};
use crate::p2p;
use crate::request::{self, Work};
use crate::session;
use crate::slots::Object;
use gapless::coll::Level;
use gapless::{Communicator, PmlError, raw};
use std::ffi::{CStr, CString, c_int};
use std::sync::{Mutex, MutexGuard, PoisonError};

fn full() -> Fail {
    Fail::new(face::ERR_NO_MEM, "there are a million communicators")
}

/// Gives the program a handle of a new communicator, or `MPI_COMM_NULL`.
fn give(made: Option<CommObject>, newcomm: HandleOut) -> Done {
    newcomm.set(match made {
        Some(made) => COMMS.insert(made).ok_or_else(full)?,
        None => face::COMM_NULL,
    });
    Ok(())
}

impl CommObject {
    /// A communicator that was made of this one, whose error handler it has (MPI 4.1 §9.3).
    fn child(&self, made: Communicator) -> CommObject {
        CommObject::new(made, self.errhandler(), "")
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
    match comm.attributes.copy(comm.handle()) {
        Ok(attributes) => made.attributes = attributes,
        Err(fail) => {
            let _ = made.comm.free();
            return Err(fail);
        }
    }
    if let Some(info) = info {
        made.set_hints(&info);
    }
    give(Some(made), newcomm)
}

/// Communicators that are being made, which have a handle and an error handler already: programs set it at once.
static UNMADE: Mutex<Vec<(RawHandle, Handler)>> = Mutex::new(Vec::new());

fn unmade() -> MutexGuard<'static, Vec<(RawHandle, Handler)>> {
    UNMADE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The error handler of a communicator that is being made.
pub(crate) fn of_unmade(comm: RawHandle) -> Option<Handler> {
    unmade().iter().find(|(its, _)| *its == comm).map(|(_, handler)| handler.clone())
}

/// Sets it, if it is such a communicator.
pub(crate) fn set_unmade(comm: RawHandle, errhandler: &Handler) -> bool {
    let mut all = unmade();
    let found = all.iter_mut().find(|(its, _)| *its == comm);
    let before = found.map(|(_, its)| std::mem::replace(its, errhandler.clone()));
    drop(all);
    before.is_some()
}

/// Such a communicator, until it is made, or cannot be.
struct Unmade(RawHandle);

impl Drop for Unmade {
    fn drop(&mut self) {
        let mut all = unmade();
        let index = all.iter().position(|(its, _)| *its == self.0);
        let gone = index.map(|index| all.swap_remove(index));
        drop(all);
        drop(gone);
    }
}

pub(crate) fn comm_idup(comm: Comm, newcomm: HandleOut, request: HandleOut) -> Done {
    comm_idup_with_info(comm, None, newcomm, request)
}

pub(crate) fn comm_idup_with_info(
    comm: Comm,
    info: Option<Info>,
    newcomm: HandleOut,
    request: HandleOut,
) -> Done {
    let reserved = COMMS.reserve().ok_or_else(full)?;
    let started = raw::Request::dup(&comm.comm)?;
    // Attributes are those of now (MPI 4.1 §7.4.2).
    let attributes = comm.attributes.copy(comm.handle())?;
    newcomm.set(reserved.handle());
    unmade().push((reserved.handle(), comm.errhandler()));
    let in_making = Unmade(reserved.handle());
    let subject = Subject::OfComm(comm.clone());
    let then = move |request: &mut raw::Request| {
        let made = request.made().ok_or(PmlError::Bug { what: "a duplicate for nobody" })?;
        let mut made = comm.child(made);
        made.attributes = attributes;
        if let Some(info) = info {
            made.set_hints(&info);
        }
        if let Some(errhandler) = of_unmade(reserved.handle()) {
            made.set_errhandler(errhandler);
        }
        drop(in_making);
        reserved.fill(made);
        Ok(())
    };
    request::give_then(request, subject, Work::One(started), Some(Box::new(then)))
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
    let told = Subject::Handler(errhandler.clone(), face::COMM_NULL);
    let made = arg::process()?.comm_world.comm.create_group(&group, tag);
    let made = made.map_err(|error| Fail::from(error).on(told))?;
    let made = CommObject::new(made, errhandler, "");
    if let Some(info) = info {
        made.set_hints(&info);
    }
    give(Some(made), newcomm)
}

fn rank_in(rank: c_int, size: u32, name: &str) -> Done<u32> {
    let none =
        || Fail::new(face::ERR_RANK, format!("{name}: there is no rank {rank} among {size}"));
    u32::try_from(rank).ok().filter(|rank| *rank < size).ok_or_else(none)
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
    let leader = rank_in(local_leader, local_group.size(), "local_leader")?;
    let remote = rank_in(remote_leader, remote_group.size(), "remote_leader")?;
    let remote = remote_group.process(remote).unwrap_or(remote);
    let world = &arg::process()?.comm_world.comm;
    let told = Subject::Handler(errhandler.clone(), face::COMM_NULL);
    let make = || {
        let local = world.create_group(&local_group, tag)?;
        let made = local.intercomm(leader, world, remote, tag);
        local.free()?;
        made
    };
    let made = make().map_err(|error| Fail::from(error).on(told))?;
    let made = CommObject::new(made, errhandler, "");
    if let Some(info) = info {
        made.set_hints(&info);
    }
    give(Some(made), newintercomm)
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
    let leader = rank_in(local_leader, local.size(), "local_leader")?;
    // Only the leader's are looked at.
    let made = match leader == local.rank() {
        true => {
            let peer = arg::comm(peer_comm, "peer_comm")?;
            let remote = rank_in(remote_leader, peer.peers(), "remote_leader")?;
            local.intercomm(leader, &peer.comm, remote, tag)
        }
        false => local.intercomm(leader, local, 0, tag),
    };
    local_comm.give_child(Some(made?), newintercomm)
}

pub(crate) fn intercomm_merge(intercomm: Comm, high: c_int, newintracomm: HandleOut) -> Done {
    intercomm.give_child(Some(intercomm.comm.merge(high != 0)?), newintracomm)
}

pub(crate) fn comm_free(comm: HandleOut) -> Done {
    let freed = arg::comm(comm.get(), "comm")?;
    if let Object::Predefined(..) = freed {
        return Err(Fail::from(PmlError::PredefinedComm).on(Subject::Comm(freed.handle())));
    }
    let done = freed.attributes.delete_all(freed.handle());
    let done = done.and_then(|()| Ok(freed.comm.clone().free()?));
    done.map_err(|fail| fail.on(Subject::Comm(freed.handle())))?;
    p2p::forget_comm_buffer(freed.handle())?;
    COMMS.free(freed.handle());
    comm.set(face::COMM_NULL);
    Ok(())
}

pub(crate) fn comm_disconnect(comm: HandleOut) -> Done {
    // What is in flight on it ends, whether its handle is there or not.
    comm_free(comm)
}
