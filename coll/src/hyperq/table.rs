//! How many copies of each kind are best: the table of the static algorithm, and the settings of all ranks.

use super::{Fixed, HyperQStep};

/// How collectives on one GPU decide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// By the table, if it has entries of this GPU and buffers lie on no other. Else as [`Led`](Mode::Led).
    #[default]
    Auto,
    /// By the table; where it has nothing, by defaults.
    Static,
    /// As the paper's dynamic algorithm.
    Dynamic,
    /// Dynamic, with what was learned in earlier calls.
    Remembering,
    /// One process on each GPU works on the buffers of all that are there, which it maps: the copies and kernels of the
    /// others would wait for their turns. Where that cannot be, as [`Remembering`](Mode::Remembering).
    Led,
    /// Not at all: through the host's memory, as anywhere.
    Off,
}

impl Mode {
    /// All of them.
    pub const ALL: [Mode; 6] =
        [Mode::Auto, Mode::Static, Mode::Dynamic, Mode::Remembering, Mode::Led, Mode::Off];

    /// Its name in files and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Auto => "auto",
            Mode::Static => "static",
            Mode::Dynamic => "dynamic",
            Mode::Remembering => "remembering",
            Mode::Led => "leader-driven",
            Mode::Off => "off",
        }
    }

    /// The mode of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// A line of the [`Table`]: how many host-staged copies were best for one step, number of processes and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Which step.
    pub step: HyperQStep,
    /// How many processes there were, the leader among them.
    pub processes: usize,
    /// Bytes of a copy.
    pub bytes: u64,
    /// Host-staged copies; the others went by IPC.
    pub staged: usize,
}

/// What was best on one model of GPU, with or without the Multi-Process Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The vendor's name of it.
    pub model: String,
    /// Whether processes shared it (the Multi-Process Service), or took turns.
    pub mps: bool,
    /// In any order.
    pub entries: Vec<Entry>,
}

/// The table of the static policy: which mixture of copies was best, for each model of GPU that was measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// By model and service.
    pub gpus: Vec<Gpu>,
}

/// Where processes take turns, a host-staged copy of up to so many bytes is over before an IPC copy's turn comes.
const STAGED_BYTES: u64 = 1 << 20;

impl Table {
    /// Whether it has entries of this model, under the same service.
    #[must_use]
    pub fn knows(&self, model: &str, mps: bool) -> bool {
        self.gpus.iter().any(|gpu| gpu.model == model && gpu.mps == mps && !gpu.entries.is_empty())
    }

    /// How many copies of each kind, of so many bytes each, among so many processes. Between two lengths of the table
    /// the part that is host-staged changes evenly with the logarithm. What holds for the nearest number of processes
    /// is scaled. A model that it does not know is taken for another one under the same service; without any, IPC is
    /// used where processes share the GPU, and where they take turns, host-staged copies if they are short, and both if
    /// they are long.
    #[must_use]
    pub fn counts(
        &self,
        (model, mps): (&str, bool),
        step: HyperQStep,
        (processes, copies): (usize, usize),
        bytes: u64,
    ) -> Fixed {
        let gpus = || self.gpus.iter().filter(|gpu| gpu.mps == mps);
        let gpu = gpus().find(|gpu| gpu.model == model).or_else(|| gpus().next());
        let part = gpu.and_then(|gpu| gpu.staged_part(step, processes, bytes));
        let part = part.unwrap_or(match (mps, bytes) {
            (true, _) => 0.0,
            (false, ..=STAGED_BYTES) => 1.0,
            (false, _) => 0.5,
        });
        let staged = rounded(part * copies as f64).min(copies);
        Fixed::new(staged, copies - staged)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small number, not negative"
)]
fn rounded(number: f64) -> usize {
    number.round().max(0.0) as usize
}

impl Gpu {
    /// Which part of the copies is host-staged.
    fn staged_part(&self, step: HyperQStep, processes: usize, bytes: u64) -> Option<f64> {
        let own = || self.entries.iter().filter(|entry| entry.step == step && entry.processes > 1);
        let far = |entry: &Entry| (log(entry.processes as f64) - log(processes as f64)).abs();
        let nearest = own().map(far).min_by(f64::total_cmp)?;
        let near = || own().filter(|entry| far(entry) <= nearest);
        let part = |entry: &Entry| entry.staged as f64 / (entry.processes - 1) as f64;
        let below = near().filter(|entry| entry.bytes <= bytes).max_by_key(|entry| entry.bytes);
        let above = near().filter(|entry| entry.bytes >= bytes).min_by_key(|entry| entry.bytes);
        match (below, above) {
            (Some(below), Some(above)) if below.bytes < above.bytes => {
                let [low, at, high] =
                    [below.bytes, bytes, above.bytes].map(|it| log(it.max(1) as f64));
                Some(part(below) + (part(above) - part(below)) * (at - low) / (high - low))
            }
            (Some(only), _) | (None, Some(only)) => Some(part(only)),
            (None, None) => None,
        }
    }
}

fn log(number: f64) -> f64 {
    number.max(1.0).log2()
}

/// How the ranks of a communicator go about collectives on one GPU. All have the same settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How it is decided.
    pub mode: Mode,
    /// Calls of fewer bytes go through the host's memory. Bytes of a rank's copy.
    pub bytes_min: u64,
    /// Of the static algorithm.
    pub table: Table,
}

impl Default for Settings {
    /// Automatic, for what is too long for a mailbox entry.
    fn default() -> Settings {
        Settings { mode: Mode::Auto, bytes_min: 1025, table: Table::default() }
    }
}
