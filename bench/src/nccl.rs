//! NCCL, if its library is here: what collectives between GPUs are compared with. It is opened at run time; nothing of
//! it is built in.
//!
//! Types and numbers are those of `nccl.h` 2.27 and later. Buffers of [`Nccl::allocate`] are registered as symmetric
//! windows, in which NCCL's newer kernels work.

use crate::error::Failure;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

type Comm = *mut c_void;
type Stream = *mut c_void;

/// The variable that keeps it from using NVLink SHARP.
pub const NO_SHARP: [(&str, &str); 1] = [("NCCL_NVLS_ENABLE", "0")];

/// Bytes of what ranks find each other by.
pub const ID_BYTES: usize = 128;

#[repr(C)]
#[derive(Clone, Copy)]
struct Id([u8; ID_BYTES]);

const FLOAT: c_int = 7;
const SUM: c_int = 0;
const SYMMETRIC: c_int = 1;

macro_rules! functions {
    ($($name:ident = $symbol:literal ($($arg:ty),*);)*) => {
        struct Api {
            $($name: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Api {
            /// # Safety
            /// `library` is NCCL, open.
            unsafe fn find(library: *mut c_void) -> Result<Api, String> {
                Ok(Api {
                    $($name: {
                        // SAFETY: the library is open, and the name ends in NUL.
                        let found = unsafe { libc::dlsym(library, concat!($symbol, "\0").as_ptr().cast()) };
                        if found.is_null() {
                            return Err(concat!("NCCL has no ", $symbol).to_owned());
                        }
                        // SAFETY: NCCL's function of this name, whose type its header fixes as written here.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) -> c_int,
                            >(found)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    version = "ncclGetVersion" (*mut c_int);
    unique_id = "ncclGetUniqueId" (*mut Id);
    init = "ncclCommInitRank" (*mut Comm, c_int, Id, c_int);
    allocate = "ncclMemAlloc" (*mut *mut c_void, usize);
    register = "ncclCommWindowRegister" (Comm, *mut c_void, usize, *mut *mut c_void, c_int);
    allreduce = "ncclAllReduce" (*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream);
    allgather = "ncclAllGather" (*const c_void, *mut c_void, usize, c_int, Comm, Stream);
    reduce_scatter = "ncclReduceScatter"
        (*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream);
    broadcast = "ncclBroadcast"
        (*const c_void, *mut c_void, usize, c_int, c_int, Comm, Stream);
    send = "ncclSend" (*const c_void, usize, c_int, c_int, Comm, Stream);
    receive = "ncclRecv" (*mut c_void, usize, c_int, c_int, Comm, Stream);
    group_start = "ncclGroupStart" ();
    group_end = "ncclGroupEnd" ();
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NcclCall {
    /// Of `count` floats.
    Allreduce,
    /// Of blocks of `count` floats.
    Allgather,
    /// Likewise.
    ReduceScatter,
    /// Likewise.
    Alltoall,
    /// Of `count` floats, from rank 0; where they are received they are sent.
    Broadcast,
}

/// NCCL, and a communicator of it on the device that is current. It ends with the process, like the memory of its windows:
/// processes that measure live no longer.
pub struct Nccl {
    api: Api,
    comm: Comm,
    ranks: c_int,
    /// Major, minor and patch, as NCCL counts: 22803 is 2.28.3.
    pub version: i32,
}

/// Opens a library of NVIDIA's.
pub(crate) fn library(path: &str) -> Result<*mut c_void, String> {
    let name = CString::new(path).map_err(|_| "a path with a NUL".to_owned())?;
    // SAFETY: runs the initialisers of NVIDIA's library, which is what opening it is for; it is never closed.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        // SAFETY: the text of the error above, of this thread.
        let why: *const c_char = unsafe { libc::dlerror() };
        if why.is_null() {
            return Err(format!("{path} cannot be opened"));
        }
        // SAFETY: a text that ends in NUL, says `dlerror`.
        return Err(unsafe { CStr::from_ptr(why) }.to_string_lossy().into_owned());
    }
    Ok(library)
}

/// Opens NCCL.
fn open(path: &str) -> Result<Api, String> {
    let library = library(path)?;
    // SAFETY: it was opened above.
    unsafe { Api::find(library) }
}

fn check(what: &'static str, answer: c_int) -> Result<(), Failure> {
    match answer {
        0 => Ok(()),
        code => Err(Failure::Job(format!("{what} of NCCL answered {code}"))),
    }
}

impl Nccl {
    /// A new name for a job's communicator.
    ///
    /// # Errors
    /// There is no library at `path`, or it refuses.
    pub fn id(path: &str) -> Result<[u8; ID_BYTES], Failure> {
        let api = open(path).map_err(Failure::Job)?;
        let mut id = Id([0; ID_BYTES]);
        // SAFETY: `id` is writable for the call.
        check("ncclGetUniqueId", unsafe { (api.unique_id)(&raw mut id) })?;
        Ok(id.0)
    }

    /// Joins the communicator of that name. Collective.
    ///
    /// # Errors
    /// As [`id`](Nccl::id).
    pub fn join(path: &str, id: [u8; ID_BYTES], rank: u32, ranks: u32) -> Result<Nccl, Failure> {
        let api = open(path).map_err(Failure::Job)?;
        let number = |of: u32| c_int::try_from(of).unwrap_or(c_int::MAX);
        let (mut comm, mut version) = (std::ptr::null_mut(), 0);
        // SAFETY: `version` is writable for the call.
        check("ncclGetVersion", unsafe { (api.version)(&raw mut version) })?;
        // SAFETY: `comm` is writable for the call.
        let joined = unsafe { (api.init)(&raw mut comm, number(ranks), Id(id), number(rank)) };
        check("ncclCommInitRank", joined)?;
        Ok(Nccl { api, comm, ranks: number(ranks), version })
    }

    /// Memory in a symmetric window. Collective. It stays until the process ends.
    ///
    /// # Errors
    /// No memory, or a NCCL without windows.
    pub fn allocate(&self, bytes: usize) -> Result<u64, Failure> {
        let (mut memory, mut window) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: `memory` is writable for the call.
        check("ncclMemAlloc", unsafe { (self.api.allocate)(&raw mut memory, bytes) })?;
        // SAFETY: the memory was allocated above; `window` is writable for the call.
        let registered =
            unsafe { (self.api.register)(self.comm, memory, bytes, &raw mut window, SYMMETRIC) };
        check("ncclCommWindowRegister", registered)?;
        Ok(memory.expose_provenance() as u64)
    }

    /// Queues a collective of floats on a stream.
    ///
    /// # Safety
    /// The addresses are those of device memory that is long enough, and nothing else touches it until the work has
    /// ended. The stream lives.
    ///
    /// # Errors
    /// NCCL refuses.
    pub unsafe fn call(
        &self,
        call: NcclCall,
        (send, recv): (u64, u64),
        count: u64,
        stream: *mut c_void,
    ) -> Result<(), Failure> {
        let at = |address: u64| {
            std::ptr::with_exposed_provenance_mut::<c_void>(usize::try_from(address).unwrap_or(0))
        };
        let (from, to) = (at(send), at(recv));
        let n = usize::try_from(count).unwrap_or(usize::MAX);
        let Api { allreduce, allgather, reduce_scatter, broadcast, .. } = self.api;
        match call {
            NcclCall::Allreduce => {
                // SAFETY: the caller's promise.
                let answer = unsafe { allreduce(from, to, n, FLOAT, SUM, self.comm, stream) };
                check("ncclAllReduce", answer)
            }
            NcclCall::Allgather => {
                // SAFETY: as above.
                let answer = unsafe { allgather(from, to, n, FLOAT, self.comm, stream) };
                check("ncclAllGather", answer)
            }
            NcclCall::ReduceScatter => {
                // SAFETY: as above.
                let answer = unsafe { reduce_scatter(from, to, n, FLOAT, SUM, self.comm, stream) };
                check("ncclReduceScatter", answer)
            }
            NcclCall::Broadcast => {
                // SAFETY: as above.
                let answer = unsafe { broadcast(to, to, n, FLOAT, 0, self.comm, stream) };
                check("ncclBroadcast", answer)
            }
            NcclCall::Alltoall => {
                // SAFETY: takes nothing.
                check("ncclGroupStart", unsafe { (self.api.group_start)() })?;
                for peer in 0..self.ranks {
                    let block = u64::try_from(peer).unwrap_or(0) * count * 4;
                    let (from, to) = (at(send + block), at(recv + block));
                    // SAFETY: as above.
                    let sent = unsafe { (self.api.send)(from, n, FLOAT, peer, self.comm, stream) };
                    check("ncclSend", sent)?;
                    // SAFETY: as above.
                    let got = unsafe { (self.api.receive)(to, n, FLOAT, peer, self.comm, stream) };
                    check("ncclRecv", got)?;
                }
                // SAFETY: takes nothing.
                check("ncclGroupEnd", unsafe { (self.api.group_end)() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_an_error_of_one_line() {
        let error = Nccl::id("/nowhere/libnccl.so.2").unwrap_err().to_string();
        assert!(error.contains("/nowhere/libnccl.so.2") && !error.contains('\n'), "{error}");
        // One that is there, and is another.
        let error = Nccl::id("libc.so.6").unwrap_err().to_string();
        assert!(error.contains("ncclGetVersion"), "{error}");
    }
}
