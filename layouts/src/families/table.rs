//! The table of families, and how a size becomes the parameters of each.

use super::{Family, FamilyInfo, Group};
use crate::{
    case::{Axis, Case},
    catalog::Options,
    cube, dispatch,
    error::LayoutError,
    fft, lammps, milc, nas, openmpi, pages, papers, reshard, specfem,
    wrf::{self, Style, Towards},
};

const WU: &str = "Wu et al., HPDC 2016";
const STENCIL: &str = "GPU datatype papers";
const DDT: &str = "DDTBench 1.2, EuroMPI 2012";
const MODELS: &str = "language models";
const MATRIX: &[u64] = &[512, 1024, 2048];
const MATRIX_ALL: &[u64] = &[512, 1024, 2048, 4096, 8192, 16384];
const SETS_3: &[u64] = &[1, 2, 3];
const SETS_4: &[u64] = &[1, 2, 3, 4];
const EDGE: &str = "matrix edge N, 1 or more";
const CUBE: &str = "edge of the cube, 1 or more; the depth (1 and 3 cells) is an option";
const SET_3: &str = "parameter set of the benchmark, 1 to 3";
const SET_4: &str = "parameter set of the benchmark, 1 to 4";
const MG: &str = "edge c of the (2c-2, c, c) array, 3 or more";
const KV_PAGES: &str = "number of tokens of a page: 16, 32 or 64";
const WRF_X: &str = "edge of the process grid: 8, 4 or 2";
const WRF_Y: &str = "edge of the process grid: 8, 5, 4, 3 or 2";

/// Every family, in the order of the catalogue.
pub(crate) static FAMILIES: &[FamilyInfo] = &[
    FamilyInfo {
        family: Family::V,
        name: "v",
        aliases: &["sub-matrix", "submatrix"],
        meaning: "half the rows of a column-major matrix: N blocks of 8N bytes",
        source: WU,
        n_meaning: EDGE,
        default_sizes: MATRIX,
        documented_sizes: MATRIX_ALL,
        build: |n, _| one(papers::v(n)),
    },
    FamilyInfo {
        family: Family::VContiguous,
        name: "vc",
        aliases: &["v-contiguous"],
        meaning: "V sent, contiguous doubles received",
        source: WU,
        n_meaning: EDGE,
        default_sizes: MATRIX,
        documented_sizes: MATRIX_ALL,
        build: |n, _| one(papers::v_contiguous(n)),
    },
    FamilyInfo {
        family: Family::T,
        name: "t",
        aliases: &["triangle"],
        meaning: "lower triangle of a column-major matrix: N columns, each shorter by one",
        source: WU,
        n_meaning: EDGE,
        default_sizes: MATRIX,
        documented_sizes: MATRIX_ALL,
        build: |n, _| one(papers::t(n)),
    },
    FamilyInfo {
        family: Family::Stair,
        name: "stair",
        aliases: &["stair-triangle"],
        meaning: "triangle in steps of equal columns",
        source: WU,
        n_meaning: "matrix edge N, a multiple of the step (256 unless set)",
        default_sizes: MATRIX,
        documented_sizes: MATRIX_ALL,
        build: |n, options| one(papers::stair(n, options.stair_step)),
    },
    FamilyInfo {
        family: Family::X,
        name: "x",
        aliases: &["transpose"],
        meaning: "matrix sent by rows, received contiguously: N*N blocks of one double",
        source: WU,
        n_meaning: EDGE,
        default_sizes: &[512, 1024],
        documented_sizes: MATRIX_ALL,
        build: |n, _| one(papers::x(n)),
    },
    FamilyInfo {
        family: Family::FaceX,
        name: "face-x",
        aliases: &[],
        meaning: "face of a cube normal to the fastest axis: a block of h doubles per row",
        source: STENCIL,
        n_meaning: CUBE,
        default_sizes: &[256],
        documented_sizes: &[512],
        build: |n, options| by_depth(options, |depth| cube::face(Axis::X, n, depth)),
    },
    FamilyInfo {
        family: Family::FaceY,
        name: "face-y",
        aliases: &[],
        meaning: "face of a cube normal to the middle axis: h rows per plane",
        source: STENCIL,
        n_meaning: CUBE,
        default_sizes: &[256],
        documented_sizes: &[512],
        build: |n, options| by_depth(options, |depth| cube::face(Axis::Y, n, depth)),
    },
    FamilyInfo {
        family: Family::FaceZ,
        name: "face-z",
        aliases: &[],
        meaning: "face of a cube normal to the slowest axis: h planes, contiguous",
        source: STENCIL,
        n_meaning: CUBE,
        default_sizes: &[256],
        documented_sizes: &[512],
        build: |n, options| by_depth(options, |depth| cube::face(Axis::Z, n, depth)),
    },
    FamilyInfo {
        family: Family::Halo26,
        name: "halo26",
        aliases: &["halo"],
        meaning: "the boundary of a cube into the ghost cells of all 26 neighbours",
        source: "Gapless",
        n_meaning: CUBE,
        default_sizes: &[128],
        documented_sizes: &[512],
        build: |n, options| by_depth(options, |depth| cube::halo26(n, depth)),
    },
    FamilyInfo {
        family: Family::WrfXVec,
        name: "wrf-x-vec",
        aliases: &[],
        meaning: "weather halo towards x: nine arrays as nested vectors, narrow rows",
        source: DDT,
        n_meaning: WRF_X,
        default_sizes: &[8, 2],
        documented_sizes: &[8, 4, 2],
        build: |n, _| patch(n, Towards::X, Style::Vectors),
    },
    FamilyInfo {
        family: Family::WrfXSa,
        name: "wrf-x-sa",
        aliases: &[],
        meaning: "weather halo towards x as subarrays",
        source: DDT,
        n_meaning: WRF_X,
        default_sizes: &[8, 2],
        documented_sizes: &[8, 4, 2],
        build: |n, _| patch(n, Towards::X, Style::Subarrays),
    },
    FamilyInfo {
        family: Family::WrfYVec,
        name: "wrf-y-vec",
        aliases: &[],
        meaning: "weather halo towards y: nine arrays as nested vectors",
        source: DDT,
        n_meaning: WRF_Y,
        default_sizes: &[8, 2],
        documented_sizes: &[8, 5, 4, 3, 2],
        build: |n, _| patch(n, Towards::Y, Style::Vectors),
    },
    FamilyInfo {
        family: Family::WrfYSa,
        name: "wrf-y-sa",
        aliases: &[],
        meaning: "weather halo towards y as subarrays",
        source: DDT,
        n_meaning: WRF_Y,
        default_sizes: &[8, 2],
        documented_sizes: &[8, 5, 4, 3, 2],
        build: |n, _| patch(n, Towards::Y, Style::Subarrays),
    },
    FamilyInfo {
        family: Family::Milc,
        name: "milc",
        aliases: &["milc-su3-zdown"],
        meaning: "lattice QCD: z face of a four-dimensional lattice of su3 vectors",
        source: DDT,
        n_meaning: SET_4,
        default_sizes: &[1, 4],
        documented_sizes: SETS_4,
        build: |n, _| set("milc", n, SET_4, &milc::LATTICES, |&l| milc::su3_zdown(l)),
    },
    FamilyInfo {
        family: Family::NasLuX,
        name: "nas-lu-x",
        aliases: &[],
        meaning: "edge of a grid of five doubles per cell, contiguous",
        source: DDT,
        n_meaning: "number of cells along the edge, 1 or more",
        default_sizes: &[12, 162, 1020],
        documented_sizes: &nas::LU_EDGES,
        build: |n, _| one(nas::lu_x(n)),
    },
    FamilyInfo {
        family: Family::NasLuY,
        name: "nas-lu-y",
        aliases: &[],
        meaning: "edge of a grid of five doubles per cell, strided",
        source: DDT,
        n_meaning: "number of cells along the edge, 1 or more",
        default_sizes: &[12, 162, 1020],
        documented_sizes: &nas::LU_EDGES,
        build: |n, _| one(nas::lu_y(n)),
    },
    FamilyInfo {
        family: Family::NasMgX,
        name: "nas-mg-x",
        aliases: &[],
        meaning: "face of a multigrid array: single doubles",
        source: DDT,
        n_meaning: MG,
        default_sizes: &[18, 66, 130],
        documented_sizes: &nas::MG_EDGES,
        build: |n, _| multigrid("nas-mg-x", Axis::X, n),
    },
    FamilyInfo {
        family: Family::NasMgY,
        name: "nas-mg-y",
        aliases: &[],
        meaning: "face of a multigrid array: a row per plane",
        source: DDT,
        n_meaning: MG,
        default_sizes: &[18, 66, 130],
        documented_sizes: &nas::MG_EDGES,
        build: |n, _| multigrid("nas-mg-y", Axis::Y, n),
    },
    FamilyInfo {
        family: Family::NasMgZ,
        name: "nas-mg-z",
        aliases: &[],
        meaning: "face of a multigrid array: rows of one plane",
        source: DDT,
        n_meaning: MG,
        default_sizes: &[18, 66, 130],
        documented_sizes: &nas::MG_EDGES,
        build: |n, _| multigrid("nas-mg-z", Axis::Z, n),
    },
    FamilyInfo {
        family: Family::LammpsFull,
        name: "lammps-full",
        aliases: &[],
        meaning: "six properties of listed atoms, received behind the local ones",
        source: DDT,
        n_meaning: SET_3,
        default_sizes: &[1, 3],
        documented_sizes: SETS_3,
        build: |n, options| {
            let lists = options.lists;
            set("lammps-full", n, SET_3, &lammps::FULL, |&(l, k)| lammps::full(l, k, lists))
        },
    },
    FamilyInfo {
        family: Family::LammpsAtomic,
        name: "lammps-atomic",
        aliases: &[],
        meaning: "four properties of listed atoms, received behind the local ones",
        source: DDT,
        n_meaning: SET_3,
        default_sizes: &[1, 3],
        documented_sizes: SETS_3,
        build: |n, options| {
            let lists = options.lists;
            set("lammps-atomic", n, SET_3, &lammps::ATOMIC, |&(l, k)| lammps::atomic(l, k, lists))
        },
    },
    FamilyInfo {
        family: Family::Specfem3dOc,
        name: "specfem3d-oc",
        aliases: &["specfem-oc"],
        meaning: "seismic waves: listed floats of the outer core",
        source: DDT,
        n_meaning: SET_4,
        default_sizes: &[1, 4],
        documented_sizes: SETS_4,
        build: |n, options| {
            let lists = options.lists;
            set("specfem3d-oc", n, SET_4, &specfem::OC, |&(l, k)| specfem::oc(l, k, lists))
        },
    },
    FamilyInfo {
        family: Family::Specfem3dCm,
        name: "specfem3d-cm",
        aliases: &["specfem-cm"],
        meaning: "seismic waves: listed vectors of mantle and inner core",
        source: DDT,
        n_meaning: SET_4,
        default_sizes: &[1, 4],
        documented_sizes: SETS_4,
        build: |n, options| {
            let lists = options.lists;
            set("specfem3d-cm", n, SET_4, &specfem::CM, |&(m, c)| specfem::cm(m, c, lists))
        },
    },
    FamilyInfo {
        family: Family::Specfem3dMt,
        name: "specfem3d-mt",
        aliases: &["specfem-mt"],
        meaning: "seismic waves: every other vector of a plane, received contiguously",
        source: DDT,
        n_meaning: "number of vectors of the plane, 1 or more",
        default_sizes: &[5600, 7600],
        documented_sizes: &specfem::MT,
        build: |n, _| one(specfem::mt(n)),
    },
    FamilyInfo {
        family: Family::Fft2d,
        name: "fft2d",
        aliases: &["fft", "fft-2d"],
        meaning: "one pair of the transpose of a two-dimensional FFT",
        source: DDT,
        n_meaning: "matrix edge, a multiple of the number of ranks (2 unless set)",
        default_sizes: &[256, 1024],
        documented_sizes: &fft::EDGES,
        build: |n, options| one(fft::transpose(n, options.ranks)),
    },
    FamilyInfo {
        family: Family::KvPages,
        name: "kv-pages",
        aliases: &["pages"],
        meaning: "drawn pages of a key-value cache, between servers with the same or other heads",
        source: "PagedAttention, SOSP 2023",
        n_meaning: KV_PAGES,
        default_sizes: &[16],
        documented_sizes: &pages::PAGE_TOKENS,
        build: |n, options| match pages::PAGE_TOKENS.contains(&n) {
            true => pages::catalogue(n, options.lists),
            false => {
                Err(LayoutError::Size { layout: "kv-pages", n, rule: None, meaning: KV_PAGES })
            }
        },
    },
    FamilyInfo {
        family: Family::Dispatch,
        name: "dispatch",
        aliases: &["moe"],
        meaning: "drawn rows of tokens to the slots of their experts, and back",
        source: MODELS,
        n_meaning: "number of tokens of a rank, a multiple of 32",
        default_sizes: &[1024],
        documented_sizes: &dispatch::TOKENS,
        build: |n, options| dispatch::catalogue(n, options.lists),
    },
    FamilyInfo {
        family: Family::Reshard,
        name: "reshard",
        aliases: &[],
        meaning: "weights between row-, column-, expert-parallel and fully sharded",
        source: MODELS,
        n_meaning: "matrix edge, a multiple of 8",
        default_sizes: &[4096],
        documented_sizes: &reshard::EDGES,
        build: |n, _| reshard::catalogue(n),
    },
    FamilyInfo {
        family: Family::OpenMpi,
        name: "openmpi",
        aliases: &["ompi"],
        meaning: "types that once broke an optimisation; each also goes by its own name",
        source: "Open MPI's datatype test corpus",
        n_meaning: "number of instances sent of each type, 1 or more",
        default_sizes: &[1],
        documented_sizes: &[1],
        build: |n, _| openmpi::names().map(|name| openmpi::case(name, n)).collect(),
    },
];

/// Names for several families; `all` is not here, it is every family.
pub(crate) static GROUPS: &[Group] = &[
    Group {
        name: "papers",
        meaning: "the matrices, faces and halo of the GPU datatype papers",
        members: &["v", "vc", "t", "stair", "x", "face-x", "face-y", "face-z", "halo26"],
    },
    Group {
        name: "face",
        meaning: "the three faces of a cube",
        members: &["face-x", "face-y", "face-z"],
    },
    Group {
        name: "ddtbench",
        meaning: "all of DDTBench's applications",
        members: &[
            "wrf-x-vec",
            "wrf-x-sa",
            "wrf-y-vec",
            "wrf-y-sa",
            "milc",
            "nas-lu-x",
            "nas-lu-y",
            "nas-mg-x",
            "nas-mg-y",
            "nas-mg-z",
            "lammps-full",
            "lammps-atomic",
            "specfem3d-oc",
            "specfem3d-cm",
            "specfem3d-mt",
            "fft2d",
        ],
    },
    Group {
        name: "models",
        meaning: "caches, tokens and weights of language models",
        members: &["kv-pages", "dispatch", "reshard"],
    },
    Group {
        name: "wrf",
        meaning: "WRF in both directions and descriptions",
        members: &["wrf-x-vec", "wrf-x-sa", "wrf-y-vec", "wrf-y-sa"],
    },
    Group { name: "nas-lu", meaning: "both edges of NAS LU", members: &["nas-lu-x", "nas-lu-y"] },
    Group {
        name: "nas-mg",
        meaning: "the three faces of NAS MG",
        members: &["nas-mg-x", "nas-mg-y", "nas-mg-z"],
    },
    Group {
        name: "lammps",
        meaning: "LAMMPS in both styles",
        members: &["lammps-full", "lammps-atomic"],
    },
    Group {
        name: "specfem3d",
        meaning: "the three messages of SPECFEM3D",
        members: &["specfem3d-oc", "specfem3d-cm", "specfem3d-mt"],
    },
];

fn one(case: Result<Case, LayoutError>) -> Result<Vec<Case>, LayoutError> {
    case.map(|case| vec![case])
}

fn by_depth(
    options: &Options,
    build: impl Fn(u64) -> Result<Case, LayoutError>,
) -> Result<Vec<Case>, LayoutError> {
    match options.depth {
        Some(depth) => one(build(depth)),
        None => cube::DEPTHS.into_iter().map(build).collect(),
    }
}

/// The `n`-th of a benchmark's parameter sets, counted from 1.
fn set<S>(
    layout: &'static str,
    n: u64,
    meaning: &'static str,
    sets: &[S],
    build: impl Fn(&S) -> Result<Case, LayoutError>,
) -> Result<Vec<Case>, LayoutError> {
    let index = n.checked_sub(1).and_then(|index| usize::try_from(index).ok());
    let parameters = index.and_then(|index| sets.get(index));
    one(build(parameters.ok_or(LayoutError::Size { layout, n, rule: None, meaning })?))
}

fn patch(grid: u64, towards: Towards, style: Style) -> Result<Vec<Case>, LayoutError> {
    let (patches, meaning) = match towards {
        Towards::X => (wrf::X.as_slice(), WRF_X),
        Towards::Y => (wrf::Y.as_slice(), WRF_Y),
    };
    let patch = patches.iter().find(|patch| patch.grid == grid);
    let patch = patch.ok_or(LayoutError::Size { layout: "wrf", n: grid, rule: None, meaning })?;
    one(wrf::halo(towards, style, *patch))
}

fn multigrid(layout: &'static str, axis: Axis, c: u64) -> Result<Vec<Case>, LayoutError> {
    if c < 3 {
        return Err(LayoutError::Size { layout, n: c, rule: None, meaning: MG });
    }
    let a = c.checked_mul(2).ok_or(LayoutError::TooLarge { layout })? - 2;
    one(nas::mg(axis, a, c, c))
}
