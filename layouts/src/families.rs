//! Families: what each layout is called, where it comes from, what its size means.

mod table;

use crate::{case::Case, catalog::Options, error::LayoutError};

pub(crate) use table::{FAMILIES, GROUPS};

/// A layout of the catalogue, whatever its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// Sub-matrix of the papers.
    V,
    /// Sub-matrix received contiguously.
    VContiguous,
    /// Lower triangle.
    T,
    /// Stair triangle.
    Stair,
    /// Transpose.
    X,
    /// Face of a cube normal to the fastest axis.
    FaceX,
    /// Face of a cube normal to the middle axis.
    FaceY,
    /// Face of a cube normal to the slowest axis: contiguous.
    FaceZ,
    /// Halo of all 26 neighbours of a cube.
    Halo26,
    /// WRF towards x, nested vectors.
    WrfXVec,
    /// WRF towards x, subarrays.
    WrfXSa,
    /// WRF towards y, nested vectors.
    WrfYVec,
    /// WRF towards y, subarrays.
    WrfYSa,
    /// MILC su3 zdown.
    Milc,
    /// NAS LU, contiguous edge.
    NasLuX,
    /// NAS LU, strided edge.
    NasLuY,
    /// NAS MG, face of single elements.
    NasMgX,
    /// NAS MG, face of rows far apart.
    NasMgY,
    /// NAS MG, face of rows close together.
    NasMgZ,
    /// LAMMPS, all properties.
    LammpsFull,
    /// LAMMPS, style *atomic*.
    LammpsAtomic,
    /// SPECFEM3D outer core.
    Specfem3dOc,
    /// SPECFEM3D crust and mantle with inner core.
    Specfem3dCm,
    /// SPECFEM3D plane.
    Specfem3dMt,
    /// Transpose of a two-dimensional FFT.
    Fft2d,
    /// Pages of key-value caches.
    KvPages,
    /// Tokens to experts and back.
    Dispatch,
    /// Weights between shardings.
    Reshard,
    /// Open MPI's test corpus.
    OpenMpi,
    /// None of the catalogue: a layout of the caller's own.
    Own,
}

impl Family {
    /// The family's entry in [`families`](crate::families).
    #[must_use]
    pub fn info(self) -> &'static FamilyInfo {
        if self == Family::Own {
            return &OWN;
        }
        FAMILIES
            .iter()
            .find(|info| info.family == self)
            .expect("a unit test walks every family through the table")
    }
}

/// What is in no catalogue: it has no sizes, and no name finds it.
static OWN: FamilyInfo = FamilyInfo {
    family: Family::Own,
    name: "own",
    aliases: &[],
    meaning: "a layout of the caller's own",
    source: "the caller",
    n_meaning: "nothing: it has one size",
    default_sizes: &[],
    documented_sizes: &[],
    build: |_, _| Ok(Vec::new()),
};

/// What there is to know about a family without building it.
#[derive(Clone, Copy, Debug)]
pub struct FamilyInfo {
    /// Which one.
    pub family: Family,
    /// Its name on a command line; lower case with dashes.
    pub name: &'static str,
    /// Other names it answers to.
    pub aliases: &'static [&'static str],
    /// One line: what is sent.
    pub meaning: &'static str,
    /// The paper or benchmark it is from.
    pub source: &'static str,
    /// What `n` means here and which values it takes.
    pub n_meaning: &'static str,
    /// The sizes that run when none is asked for.
    pub default_sizes: &'static [u64],
    /// All sizes of the source.
    pub documented_sizes: &'static [u64],
    pub(crate) build: fn(u64, &Options) -> Result<Vec<Case>, LayoutError>,
}

/// A name for several families.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The name on a command line.
    pub name: &'static str,
    /// One line: what is in it.
    pub meaning: &'static str,
    /// Its members' names, in the order they run.
    pub members: &'static [&'static str],
}
