//! Error classes (MPI 4.1 §9.4): what they mean, and which one an error of the library is of.

use crate::call::Fail;
use crate::face;
use gapless::coll::topologies::TopologyError;
use gapless::coll::{BuildError, CollError};
use gapless::{CollectiveError, Error, PmlError, WindowError, WindowFault};
use std::ffi::c_int;

/// What an error class means; `None`: MPI has no such class.
pub(crate) fn class_text(class: c_int) -> Option<&'static str> {
    Some(match class {
        face::SUCCESS => "no error",
        face::ERR_BUFFER => "invalid buffer",
        face::ERR_COUNT => "invalid count",
        face::ERR_TYPE => "invalid datatype",
        face::ERR_TAG => "invalid tag",
        face::ERR_COMM => "invalid communicator",
        face::ERR_RANK => "invalid rank",
        face::ERR_REQUEST => "invalid request",
        face::ERR_ROOT => "invalid root",
        face::ERR_GROUP => "invalid group",
        face::ERR_OP => "invalid operation",
        face::ERR_TOPOLOGY => "invalid topology",
        face::ERR_DIMS => "invalid dimensions",
        face::ERR_ARG => "invalid argument",
        face::ERR_UNKNOWN => "unknown error",
        face::ERR_TRUNCATE => "message truncated",
        face::ERR_OTHER => "error",
        face::ERR_INTERN => "internal error",
        face::ERR_PENDING => "the request is still pending",
        face::ERR_IN_STATUS => "the error is in the status",
        face::ERR_ACCESS => "permission denied",
        face::ERR_AMODE => "invalid access mode",
        face::ERR_ASSERT => "invalid assertion",
        face::ERR_BAD_FILE => "invalid file name",
        face::ERR_BASE => "invalid base address",
        face::ERR_CONVERSION => "a data conversion function failed",
        face::ERR_DISP => "invalid displacement",
        face::ERR_DUP_DATAREP => "the data representation exists already",
        face::ERR_FILE_EXISTS => "the file exists",
        face::ERR_FILE_IN_USE => "the file is in use",
        face::ERR_FILE => "invalid file handle",
        face::ERR_INFO_KEY => "invalid info key",
        face::ERR_INFO_NOKEY => "there is no such info key",
        face::ERR_INFO_VALUE => "invalid info value",
        face::ERR_INFO => "invalid info",
        face::ERR_IO => "input or output failed",
        face::ERR_KEYVAL => "invalid attribute key",
        face::ERR_LOCKTYPE => "invalid lock type",
        face::ERR_NAME => "the service name is not published",
        face::ERR_NO_MEM => "out of memory",
        face::ERR_NOT_SAME => "an argument differs among processes",
        face::ERR_NO_SPACE => "no space left",
        face::ERR_NO_SUCH_FILE => "there is no such file",
        face::ERR_PORT => "invalid port name",
        face::ERR_QUOTA => "quota exceeded",
        face::ERR_READ_ONLY => "read-only file or file system",
        face::ERR_RMA_ATTACH => "memory cannot be attached",
        face::ERR_RMA_CONFLICT => "conflicting accesses to a window",
        face::ERR_RMA_RANGE => "memory outside of the window",
        face::ERR_RMA_SHARED => "memory cannot be shared",
        face::ERR_RMA_SYNC => "wrong synchronization of a window",
        face::ERR_SERVICE => "a service name cannot be published",
        face::ERR_SIZE => "invalid size",
        face::ERR_SPAWN => "processes cannot be started",
        face::ERR_UNSUPPORTED_DATAREP => "unsupported data representation",
        face::ERR_UNSUPPORTED_OPERATION => "unsupported operation",
        face::ERR_WIN => "invalid window",
        face::ERR_RMA_FLAVOR => "wrong flavor of window",
        face::ERR_PROC_ABORTED => "a process has failed",
        face::ERR_VALUE_TOO_LARGE => "the value is too large",
        face::ERR_SESSION => "invalid session",
        face::ERR_ERRHANDLER => "invalid error handler",
        face::ERR_ABI => "ABI mismatch",
        face::T_ERR_CANNOT_INIT => "the tools' interface cannot be initialized",
        face::T_ERR_NOT_ACCESSIBLE => "not accessible now",
        face::T_ERR_NOT_INITIALIZED => "the tools' interface is not initialized",
        face::T_ERR_NOT_SUPPORTED => "not supported",
        face::T_ERR_MEMORY => "out of memory",
        face::T_ERR_INVALID => "invalid use of the tools' interface",
        face::T_ERR_INVALID_INDEX => "invalid index",
        face::T_ERR_INVALID_ITEM => "invalid item",
        face::T_ERR_INVALID_SESSION => "invalid session of performance variables",
        face::T_ERR_INVALID_HANDLE => "invalid handle of a variable",
        face::T_ERR_INVALID_NAME => "invalid name",
        face::T_ERR_OUT_OF_HANDLES => "no handle is left",
        face::T_ERR_OUT_OF_SESSIONS => "no session is left",
        face::T_ERR_CVAR_SET_NOT_NOW => "the variable cannot be set now",
        face::T_ERR_CVAR_SET_NEVER => "the variable cannot be set",
        face::T_ERR_PVAR_NO_WRITE => "the variable cannot be written",
        face::T_ERR_PVAR_NO_STARTSTOP => "the variable cannot be started or stopped",
        face::T_ERR_PVAR_NO_ATOMIC => "the variable cannot be read and reset at once",
        _ => return None,
    })
}

impl From<Error> for Fail {
    fn from(error: Error) -> Fail {
        Fail::new(class_of(&error), error.to_string())
    }
}

impl From<PmlError> for Fail {
    fn from(error: PmlError) -> Fail {
        Error::from(error).into()
    }
}

impl From<TopologyError> for Fail {
    fn from(error: TopologyError) -> Fail {
        Error::from(error).into()
    }
}

/// The class of an error of the library.
pub(super) fn class_of(error: &Error) -> c_int {
    if error.lost_rank().is_some() {
        return face::ERR_PROC_ABORTED;
    }
    match error {
        Error::Message(failure) => of_message(&failure.error),
        Error::Collective { error, .. } => of_collective(error),
        Error::Topology(error) => of_topology(error),
        Error::Window(error) => of_window(error),
        Error::Planned { error, .. } => class_of(error),
        Error::Type(_) | Error::Fit(_) | Error::Invalid { .. } => face::ERR_TYPE,
        Error::Buffer(_)
        | Error::WrongMemory { .. }
        | Error::InUse { .. }
        | Error::NoDevice { .. }
        | Error::Block { .. }
        | Error::BlocksOverlap { .. } => face::ERR_BUFFER,
        Error::BlockLists { .. } => face::ERR_COUNT,
        Error::NoGrid => face::ERR_TOPOLOGY,
        Error::OtherWorld | Error::CollectiveUnderWay => face::ERR_COMM,
        Error::Memory(_) => face::ERR_NO_MEM,
        Error::Inactive => face::ERR_REQUEST,
        Error::Poisoned => face::ERR_INTERN,
        _ => face::ERR_OTHER,
    }
}

fn of_message(error: &PmlError) -> c_int {
    match error {
        PmlError::Truncated { .. } => face::ERR_TRUNCATE,
        PmlError::SignatureMismatch { .. } => face::ERR_TYPE,
        PmlError::InvalidRank { .. } | PmlError::RankTwice { .. } => face::ERR_RANK,
        PmlError::InvalidTag { .. } => face::ERR_TAG,
        PmlError::NoSuchComm
        | PmlError::InterComm
        | PmlError::IntraComm
        | PmlError::PredefinedComm => face::ERR_COMM,
        PmlError::NoSuchRequest | PmlError::NoSuchMessage | PmlError::StillActive => {
            face::ERR_REQUEST
        }
        PmlError::BufferExhausted { .. }
        | PmlError::BufferAttached
        | PmlError::OverlappingReceive { .. }
        | PmlError::NoEngine { .. }
        | PmlError::Refused { .. }
        | PmlError::Engine(_) => face::ERR_BUFFER,
        PmlError::NotAMember => face::ERR_GROUP,
        PmlError::StrideZero => face::ERR_ARG,
        PmlError::Bug { .. } => face::ERR_INTERN,
        _ => face::ERR_OTHER,
    }
}

fn of_collective(error: &CollectiveError) -> c_int {
    match error {
        CollectiveError::InterComm => face::ERR_COMM,
        CollectiveError::Root { .. }
        | CollectiveError::Arguments(BuildError::NoSuchRank { .. } | BuildError::OwnGroup { .. }) => {
            face::ERR_ROOT
        }
        CollectiveError::Missing { .. }
        | CollectiveError::InPlace { .. }
        | CollectiveError::Overlap { .. } => face::ERR_BUFFER,
        CollectiveError::Length { .. }
        | CollectiveError::Block { .. }
        | CollectiveError::Uneven { .. }
        | CollectiveError::Blocks { .. } => face::ERR_COUNT,
        CollectiveError::Operation { .. } => face::ERR_OP,
        CollectiveError::OtherElements { .. } => face::ERR_TYPE,
        CollectiveError::NoTopology => face::ERR_TOPOLOGY,
        CollectiveError::Topology(error) => of_topology(error),
        CollectiveError::Arguments(_) => face::ERR_ARG,
        CollectiveError::Failed { error, .. } => match error {
            CollError::Length { .. } | CollError::Lengths { .. } => face::ERR_TRUNCATE,
            CollError::OtherElements { .. } => face::ERR_TYPE,
            CollError::Differs { .. } => face::ERR_NOT_SAME,
            _ => face::ERR_OTHER,
        },
        _ => face::ERR_OTHER,
    }
}

fn of_topology(error: &TopologyError) -> c_int {
    match error {
        TopologyError::NotDivisible { .. }
        | TopologyError::EmptyDimension { .. }
        | TopologyError::TooLarge
        | TopologyError::Dimension { .. } => face::ERR_DIMS,
        TopologyError::Rank { .. } => face::ERR_RANK,
        TopologyError::TooFewProcesses { .. } | TopologyError::NotSymmetric { .. } => {
            face::ERR_TOPOLOGY
        }
        _ => face::ERR_ARG,
    }
}

fn of_window(error: &WindowError) -> c_int {
    match error {
        WindowError::NoSuchRank { .. } | WindowError::NamedTwice { .. } => face::ERR_RANK,
        WindowError::Outside { .. } => face::ERR_RMA_RANGE,
        WindowError::Misaligned { .. } => face::ERR_DISP,
        WindowError::NoEpoch { .. } | WindowError::Mixed { .. } | WindowError::NotOpen { .. } => {
            face::ERR_RMA_SYNC
        }
        WindowError::Flavor { .. } => face::ERR_RMA_FLAVOR,
        WindowError::NotAttached { .. } => face::ERR_RMA_ATTACH,
        WindowError::Unshared { .. } => face::ERR_RMA_SHARED,
        WindowError::NoMemory { .. } => face::ERR_NO_MEM,
        WindowError::Elsewhere { .. } | WindowError::Broken => face::ERR_RMA_SYNC,
        WindowError::Freed { .. } => face::ERR_WIN,
        WindowError::Mismatch { .. }
        | WindowError::Overlapping { .. }
        | WindowError::LongLayout { .. } => face::ERR_TYPE,
        WindowError::Elements(_) => face::ERR_OP,
        WindowError::Differs { .. } => face::ERR_NOT_SAME,
        WindowError::Refused { why, .. } => match why {
            WindowFault::Outside => face::ERR_RMA_RANGE,
            WindowFault::NoWindow => face::ERR_WIN,
            WindowFault::Misaligned => face::ERR_DISP,
            WindowFault::Elements => face::ERR_OP,
            WindowFault::Layout => face::ERR_TYPE,
            _ => face::ERR_OTHER,
        },
        _ => face::ERR_OTHER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Fail;

    #[test]
    fn errors_have_the_class_that_mpi_has_for_them() {
        let class = |error: Error| Fail::from(error).code;
        assert_eq!(class(PmlError::InvalidTag { tag: -1 }.into()), face::ERR_TAG);
        assert_eq!(class(PmlError::NotAMember.into()), face::ERR_GROUP);
        assert_eq!(
            class(TopologyError::Dimension { dimension: 3, dimensions: 2 }.into()),
            face::ERR_DIMS
        );
        assert_eq!(class(Error::NoGrid), face::ERR_TOPOLOGY);
        assert_eq!(class(Error::Inactive), face::ERR_REQUEST);
    }
}
