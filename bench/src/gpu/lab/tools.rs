//! The kernels that measuring needs: one that holds a stream, one that does nothing. A third, which computes, is
//! [`Occupier`](crate::p2p::occupier::Occupier)'s.

use gapless_mem_cuda::{Argument, Function, Grid, Module};

use super::{Lab, PAGE, Spot};
use crate::error::Failure;

/// The kernels that measuring needs; see the file.
pub(crate) const TOOLS: &[u8] = include_bytes!("tools.ptx");
/// How long a gate stays shut at most.
const GATE_NANOS: u64 = 200_000_000;

/// The kernels of `tools.ptx`.
pub(super) struct Tools {
    gate: Function,
    nothing: Function,
    /// Host memory: the word that opens the gate.
    opener: Spot,
}

impl Tools {
    /// Loads the kernels and finds memory for their flags.
    ///
    /// # Errors
    /// What the driver refuses.
    pub(super) fn load(lab: &Lab) -> Result<Tools, Failure> {
        // SAFETY: the text is the file beside this one, which NVIDIA's assembler takes; nothing changes
        // it.
        let module = unsafe { Module::load(&lab.device, TOOLS) }?;
        let tools = Tools {
            gate: module.function(c"gate")?,
            nothing: module.function(c"nothing")?,
            opener: lab.pinned_memory(PAGE)?,
        };
        lab.write_word(&tools.opener, 0, 0)?;
        Ok(tools)
    }
}

impl Lab {
    fn tools(&self) -> Result<&Tools, Failure> {
        self.tools.as_ref().map_err(|why| Failure::NoTools { why: why.clone() })
    }

    /// Holds the lab's stream until [`open_gate`](Lab::open_gate), so that what is enqueued meanwhile
    /// runs back to back. Whether it can.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn shut_gate(&self) -> Result<bool, Failure> {
        let Ok(tools) = &self.tools else { return Ok(false) };
        self.write_word(&tools.opener, 0, 0)?;
        let at = self.device.device_address(tools.opener.0)?;
        let arguments = [Argument::of(&at), Argument::of(&GATE_NANOS)];
        // SAFETY: the two parameters are 64-bit numbers, the first the address of a word that the device
        // reads and the lab holds.
        unsafe { tools.gate.launch(&self.stream, Grid::line(1, 1), &arguments) }?;
        Ok(true)
    }

    /// Lets the stream go on.
    ///
    /// # Errors
    /// None that can happen once it could be shut.
    pub fn open_gate(&self) -> Result<(), Failure> {
        self.write_word(&self.tools()?.opener, 0, 1)
    }

    /// Launches a kernel that does nothing, on the lab's stream.
    ///
    /// # Errors
    /// The tools could not be loaded, or what the driver refuses.
    pub fn launch_nothing(&self) -> Result<(), Failure> {
        let (typed, packed, args) = (0u64, 0u64, [0u64; 8]);
        let arguments = [Argument::of(&typed), Argument::of(&packed), Argument::of(&args)];
        // SAFETY: two 64-bit numbers and 64 bytes, as declared; the kernel looks at none of them.
        Ok(unsafe { self.tools()?.nothing.launch(&self.stream, Grid::line(1, 32), &arguments) }?)
    }
}
