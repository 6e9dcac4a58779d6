//! Operations on elements (MPI 4.1 §6.9): predefined ones, and programs' own.

use crate::arg::{self, HandleOut, Out};
use crate::call::{Done, Fail};
use crate::datatype::{Elements, Type, typed, with_handle};
use crate::face::{self, RawHandle};
use crate::slots::{Object, Slots};
use gapless::{ReduceOp, UserOp, raw};
use gapless_dtype::Contents;
use std::ffi::{c_int, c_void};

type Function = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut RawHandle);
type LargeFunction = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut i64, *mut RawHandle);

/// An operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OpObject {
    Predefined(ReduceOp),
    User { function: UserFunction, commutes: bool },
}

/// A function of a program: element i of the second vector becomes the first one's, combined with it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UserFunction {
    Small(Function),
    Large(LargeFunction),
}

pub(crate) type Op = Object<OpObject>;

static OPS: Slots<OpObject> = Slots::new("operations");

macro_rules! predefined {
    ($($name:ident $op:ident)*) => {
        static PREDEFINED: &[(RawHandle, OpObject)] =
            &[$((face::$name, OpObject::Predefined(ReduceOp::$op)),)*];
    };
}

predefined! {
    SUM Sum MIN Min MAX Max PROD Prod BAND Band BOR Bor BXOR Bxor LAND Land LOR Lor LXOR Lxor
    MINLOC MinLoc MAXLOC MaxLoc REPLACE Replace NO_OP NoOp
}

/// The operation of a handle.
#[inline]
pub(crate) fn find(handle: RawHandle) -> Option<Op> {
    match PREDEFINED.iter().find(|(it, _)| *it == handle) {
        Some((_, op)) => Some(Object::Predefined(op, handle)),
        None => OPS.get(handle).map(Object::Made),
    }
}

/// Whether a predefined operation is defined for the elements of a datatype, by the names that languages have for them
/// (MPI 4.1 §6.9.2).
///
/// # Errors
/// It is not.
pub(crate) fn check(op: ReduceOp, datatype: &Type) -> Done {
    let fits = match datatype.datatype.contents() {
        Contents::Primitive(primitive) => op.is_defined_for(primitive),
        _ => gapless::Op::from(op).elements(&datatype.datatype.commit()?).is_ok(),
    };
    let undefined = || format!("{} is not defined for the datatype", op.name());
    if fits { Ok(()) } else { Err(Fail::new(face::ERR_OP, undefined())) }
}

/// The operation that a reduction of elements of a datatype takes; a program's function is given the datatype's handle.
///
/// # Errors
/// It is not defined for them, or for reductions at all; the datatype was not committed.
pub(crate) fn bind(op: &Op, datatype: &Type) -> Done<gapless::Op> {
    match **op {
        OpObject::Predefined(op @ (ReduceOp::Replace | ReduceOp::NoOp)) => {
            Err(Fail::new(face::ERR_OP, format!("{} is for windows alone", op.name())))
        }
        OpObject::Predefined(op) => check(op, datatype).map(|()| op.into()),
        OpObject::User { function, commutes } => {
            let element = datatype.committed()?;
            let datatype = datatype.clone();
            let call = move |vectors: gapless::Vectors<'_>| {
                let at = |vector: *const u8| vector.wrapping_add(vectors.origin).cast_mut().cast();
                let (left, right) = (at(vectors.invec.as_ptr()), vectors.inoutvec.as_mut_ptr());
                let right = right.wrapping_add(vectors.origin).cast();
                let len = vectors.len as u64;
                with_handle(&datatype, |handle| {
                    // SAFETY: MPI has a program's function read the first vector, and write elements of the second,
                    // which are this call's.
                    unsafe { function.call(left, right, len, handle, 0) };
                });
            };
            Ok(UserOp::typed("the program's operation", commutes, element, call).into())
        }
    }
}

impl OpObject {
    /// The operation, if it is one of those that windows have: a predefined one (MPI 4.1 §12.3.4).
    ///
    /// # Errors
    /// It is a program's.
    pub(crate) fn reduce_op(&self) -> Done<ReduceOp> {
        match self {
            OpObject::Predefined(op) => Ok(*op),
            OpObject::User { .. } => {
                Err(Fail::new(face::ERR_OP, "windows have predefined operations alone"))
            }
        }
    }
}

impl UserFunction {
    /// Combines `count` elements, which lie `extent` bytes apart.
    ///
    /// # Safety
    /// The vectors are as the program's function expects them.
    unsafe fn call(
        self,
        invec: *mut c_void,
        inoutvec: *mut c_void,
        count: u64,
        handle: RawHandle,
        extent: i64,
    ) {
        let mut datatype = handle;
        match self {
            UserFunction::Large(function) => {
                let mut len = count.cast_signed();
                // SAFETY: the caller's promise.
                unsafe { function(invec, inoutvec, &raw mut len, &raw mut datatype) };
            }
            UserFunction::Small(function) => {
                let (mut done, mut at) = (0, 0i64);
                while done < count {
                    let mut len = c_int::try_from(count - done).unwrap_or(c_int::MAX);
                    let offset = isize::try_from(at).unwrap_or(0);
                    let left = invec.wrapping_byte_offset(offset);
                    let right = inoutvec.wrapping_byte_offset(offset);
                    let n = i64::from(len);
                    // SAFETY: the caller's promise; these are some of the elements.
                    unsafe { function(left, right, &raw mut len, &raw mut datatype) };
                    done += n.cast_unsigned();
                    at = at.wrapping_add(extent.wrapping_mul(n));
                }
            }
        }
    }
}

pub(crate) unsafe fn op_create(
    user_fn: *const c_void,
    commute: c_int,
    op: HandleOut,
    large: bool,
) -> Done {
    arg::pointer(user_fn.cast_mut(), "user_fn")?;
    let function = if large {
        // SAFETY: it is not null, and a function of this type, as the first page of the crate says.
        let function = unsafe { std::mem::transmute::<*const c_void, LargeFunction>(user_fn) };
        UserFunction::Large(function)
    } else {
        // SAFETY: as above.
        let function = unsafe { std::mem::transmute::<*const c_void, Function>(user_fn) };
        UserFunction::Small(function)
    };
    op.set(OPS.insert(OpObject::User { function, commutes: commute != 0 })?);
    Ok(())
}

pub(crate) fn op_free(op: HandleOut) -> Done {
    let handle = op.get();
    if let OpObject::Predefined(op) = *arg::op(handle, "op")? {
        let why = format!("{} is predefined, and cannot be freed", op.name());
        return Err(Fail::new(face::ERR_OP, why));
    }
    OPS.free(handle);
    op.set(face::OP_NULL);
    Ok(())
}

pub(crate) fn op_commutative(op: Op, commute: Out<c_int>) -> Done {
    commute.set(c_int::from(match *op {
        OpObject::Predefined(op) => op.is_commutative(),
        OpObject::User { commutes, .. } => commutes,
    }));
    Ok(())
}

pub(crate) unsafe fn reduce_local(inbuf: *const c_void, inout: Elements, op: Op) -> Done {
    let target = inout.typed()?;
    let Elements { buf, count, datatype } = inout;
    let source = typed(inbuf, count, &datatype)?;
    if let OpObject::User { function, .. } = *op {
        if [&source, &target].iter().any(|side| !side.space().cpu_accessible()) {
            let why = "a program's function cannot touch memory of a device";
            return Err(Fail::new(face::ERR_UNSUPPORTED_OPERATION, why));
        }
        let (handle, extent) = (datatype.handle(), datatype.datatype.extent());
        if count > 0 {
            // SAFETY: the caller's promise; a program knows what its functions do.
            unsafe { function.call(inbuf.cast_mut(), buf.cast_mut(), count, handle, extent) };
        }
        return Ok(());
    }
    let op = bind(&op, &datatype)?;
    // SAFETY: the caller's promise, until this returns.
    let source = unsafe { raw::view(source) };
    // SAFETY: as above.
    let target = unsafe { raw::view_mut(target) };
    Ok(arg::process()?.comm_self.comm.reduce_local(source, target, op)?)
}
