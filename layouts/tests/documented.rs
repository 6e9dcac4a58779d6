//! Every parameter set of the literature against the numbers known for it: payload and fully
//! merged blocks of both sides, extents of the odd ones. The table is written out; nothing in it
//! comes from the code under test; a script drew the lists of pages and tokens again.

use gapless_dtype::testkit::check_datatype;
use gapless_layouts::{Case, Options, cases, documented_cases, families};

/// Case, payload bytes, blocks sent, blocks received.
const DOCUMENTED: [(&str, u64, u64, u64); 174] = [
    ("V n=512", 2_097_152, 512, 512),
    ("V n=1024", 8_388_608, 1024, 1024),
    ("V n=2048", 33_554_432, 2048, 2048),
    ("V n=4096", 134_217_728, 4096, 4096),
    ("V n=8192", 536_870_912, 8192, 8192),
    ("V n=16384", 2_147_483_648, 16384, 16384),
    ("V-contiguous n=512", 2_097_152, 512, 1),
    ("V-contiguous n=1024", 8_388_608, 1024, 1),
    ("V-contiguous n=2048", 33_554_432, 2048, 1),
    ("V-contiguous n=4096", 134_217_728, 4096, 1),
    ("V-contiguous n=8192", 536_870_912, 8192, 1),
    ("V-contiguous n=16384", 2_147_483_648, 16384, 1),
    ("T n=512", 1_050_624, 512, 512),
    ("T n=1024", 4_198_400, 1024, 1024),
    ("T n=2048", 16_785_408, 2048, 2048),
    ("T n=4096", 67_125_248, 4096, 4096),
    ("T n=8192", 268_468_224, 8192, 8192),
    ("T n=16384", 1_073_807_360, 16384, 16384),
    ("stair n=512 nb=256", 1_572_864, 257, 257),
    ("stair n=1024 nb=256", 5_242_880, 769, 769),
    ("stair n=2048 nb=256", 18_874_368, 1793, 1793),
    ("stair n=4096 nb=256", 71_303_168, 3841, 3841),
    ("stair n=8192 nb=256", 276_824_064, 7937, 7937),
    ("stair n=16384 nb=256", 1_090_519_040, 16129, 16129),
    ("X n=512", 2_097_152, 262_144, 1),
    ("X n=1024", 8_388_608, 1_048_576, 1),
    ("X n=2048", 33_554_432, 4_194_304, 1),
    ("X n=4096", 134_217_728, 16_777_216, 1),
    ("X n=8192", 536_870_912, 67_108_864, 1),
    ("X n=16384", 2_147_483_648, 268_435_456, 1),
    ("face x n=512 h=1", 2_097_152, 262_144, 262_144),
    ("face x n=512 h=3", 6_291_456, 262_144, 262_144),
    ("face y n=512 h=1", 2_097_152, 512, 512),
    ("face y n=512 h=3", 6_291_456, 512, 512),
    ("face z n=512 h=1", 2_097_152, 1, 1),
    ("face z n=512 h=3", 6_291_456, 1, 1),
    ("halo26 n=512 h=1", 12_632_128, 530_444, 530_444),
    ("halo26 n=512 h=3", 38_192_832, 542_828, 542_828),
    ("WRF x vec 8x8", 63168, 5264, 5264),
    ("WRF x vec 4x4", 102_648, 8554, 8554),
    ("WRF x vec 2x2", 173_712, 14476, 14476),
    ("WRF x sa 8x8", 63168, 5264, 5264),
    ("WRF x sa 4x4", 102_648, 8554, 8554),
    ("WRF x sa 2x2", 173_712, 14476, 14476),
    ("WRF y vec 8x8", 43428, 987, 987),
    ("WRF y vec 5x5", 55272, 987, 987),
    ("WRF y vec 4x4", 63168, 987, 987),
    ("WRF y vec 3x3", 75012, 987, 987),
    ("WRF y vec 2x2", 90804, 987, 987),
    ("WRF y sa 8x8", 43428, 987, 987),
    ("WRF y sa 5x5", 55272, 987, 987),
    ("WRF y sa 4x4", 63168, 987, 987),
    ("WRF y sa 3x3", 75012, 987, 987),
    ("WRF y sa 2x2", 90804, 987, 987),
    ("MILC 8,8,8,8", 12288, 16, 16),
    ("MILC 8,8,8,16", 24576, 32, 32),
    ("MILC 8,16,16,16", 49152, 32, 32),
    ("MILC 16,16,16,16", 98304, 32, 32),
    ("NAS LU x n=12", 480, 1, 1),
    ("NAS LU x n=33", 1320, 1, 1),
    ("NAS LU x n=64", 2560, 1, 1),
    ("NAS LU x n=102", 4080, 1, 1),
    ("NAS LU x n=162", 6480, 1, 1),
    ("NAS LU x n=408", 16320, 1, 1),
    ("NAS LU x n=1020", 40800, 1, 1),
    ("NAS LU y n=12", 480, 12, 12),
    ("NAS LU y n=33", 1320, 33, 33),
    ("NAS LU y n=64", 2560, 64, 64),
    ("NAS LU y n=102", 4080, 102, 102),
    ("NAS LU y n=162", 6480, 162, 162),
    ("NAS LU y n=408", 16320, 408, 408),
    ("NAS LU y n=1020", 40800, 1020, 1020),
    ("NAS MG x 34,18,18", 2048, 256, 256),
    ("NAS MG x 130,66,66", 32768, 4096, 4096),
    ("NAS MG x 258,130,130", 131_072, 16384, 16384),
    ("NAS MG x 514,258,258", 524_288, 65536, 65536),
    ("NAS MG y 34,18,18", 4096, 16, 16),
    ("NAS MG y 130,66,66", 65536, 64, 64),
    ("NAS MG y 258,130,130", 262_144, 128, 128),
    ("NAS MG y 514,258,258", 1_048_576, 256, 256),
    ("NAS MG z 34,18,18", 4096, 16, 16),
    ("NAS MG z 130,66,66", 65536, 64, 64),
    ("NAS MG z 258,130,130", 262_144, 128, 128),
    ("NAS MG z 514,258,258", 1_048_576, 256, 256),
    ("LAMMPS full 1907,1662", 106_368, 9972, 6),
    ("LAMMPS full 2597,2243", 143_552, 13458, 6),
    ("LAMMPS full 3534,3062", 195_968, 18372, 6),
    ("LAMMPS atomic 1217,114", 5472, 456, 4),
    ("LAMMPS atomic 2157,145", 6960, 580, 4),
    ("LAMMPS atomic 4084,243", 11664, 972, 4),
    ("SPECFEM3D oc 3697,493", 1972, 493, 493),
    ("SPECFEM3D oc 12857,877", 3508, 877, 877),
    ("SPECFEM3D oc 38585,1897", 7588, 1897, 1897),
    ("SPECFEM3D oc 88881,3225", 12900, 3225, 3225),
    ("SPECFEM3D cm 39929,1957,1225,245", 26424, 2202, 2202),
    ("SPECFEM3D cm 152001,3801,7209,801", 55224, 4602, 4602),
    ("SPECFEM3D cm 396849,7125,22477,1729", 106_248, 8854, 8854),
    ("SPECFEM3D cm 834917,11797,51153,3009", 177_672, 14806, 14806),
    ("SPECFEM3D mt n=5600", 67200, 5600, 1),
    ("SPECFEM3D mt n=6200", 74400, 6200, 1),
    ("SPECFEM3D mt n=6400", 76800, 6400, 1),
    ("SPECFEM3D mt n=7600", 91200, 7600, 1),
    ("FFT 2D n=256 P=2", 262_144, 128, 16384),
    ("FFT 2D n=512 P=2", 1_048_576, 256, 65536),
    ("FFT 2D n=768 P=2", 2_359_296, 384, 147_456),
    ("FFT 2D n=1024 P=2", 4_194_304, 512, 262_144),
    ("FFT 2D n=1536 P=2", 9_437_184, 768, 589_824),
    ("KV pages 16 together", 2_097_152, 128, 126),
    ("KV pages 16 together, 32 layers", 67_108_864, 4096, 4032),
    ("KV pages 16 apart", 2_097_152, 256, 252),
    ("KV pages 16 apart, 32 layers", 67_108_864, 8192, 8064),
    ("KV pages 16 latent", 2_359_296, 128, 126),
    ("KV pages 16 latent, 27 layers", 63_700_992, 3456, 3402),
    ("KV pages 16 tokens to heads first", 2_097_152, 128, 8062),
    ("KV pages 16 4 to 2 GPUs, tokens first", 2_097_152, 128, 4096),
    ("KV pages 16 4 to 2 GPUs, heads first", 2_097_152, 128, 256),
    ("KV pages 16 2 to 4 GPUs, tokens first", 2_097_152, 4096, 126),
    ("KV pages 16 2 to 4 GPUs, heads first", 2_097_152, 256, 126),
    ("KV pages 32 together", 2_097_152, 63, 64),
    ("KV pages 32 together, 32 layers", 67_108_864, 2016, 2048),
    ("KV pages 32 apart", 2_097_152, 126, 128),
    ("KV pages 32 apart, 32 layers", 67_108_864, 4032, 4096),
    ("KV pages 32 latent", 2_359_296, 63, 64),
    ("KV pages 32 latent, 27 layers", 63_700_992, 1701, 1728),
    ("KV pages 32 tokens to heads first", 2_097_152, 63, 8128),
    ("KV pages 32 4 to 2 GPUs, tokens first", 2_097_152, 63, 4096),
    ("KV pages 32 4 to 2 GPUs, heads first", 2_097_152, 63, 128),
    ("KV pages 32 2 to 4 GPUs, tokens first", 2_097_152, 4096, 64),
    ("KV pages 32 2 to 4 GPUs, heads first", 2_097_152, 128, 64),
    ("KV pages 64 together", 2_097_152, 31, 31),
    ("KV pages 64 together, 32 layers", 67_108_864, 992, 992),
    ("KV pages 64 apart", 2_097_152, 62, 62),
    ("KV pages 64 apart, 32 layers", 67_108_864, 1984, 1984),
    ("KV pages 64 latent", 2_359_296, 31, 31),
    ("KV pages 64 latent, 27 layers", 63_700_992, 837, 837),
    ("KV pages 64 tokens to heads first", 2_097_152, 31, 8159),
    ("KV pages 64 4 to 2 GPUs, tokens first", 2_097_152, 31, 4096),
    ("KV pages 64 4 to 2 GPUs, heads first", 2_097_152, 31, 64),
    ("KV pages 64 2 to 4 GPUs, tokens first", 2_097_152, 4096, 31),
    ("KV pages 64 2 to 4 GPUs, heads first", 2_097_152, 64, 31),
    ("dispatch 84 of 128 tokens", 1_204_224, 24, 84),
    ("combine 84 of 128 tokens", 1_204_224, 84, 24),
    ("dispatch 672 of 1024 tokens", 9_633_792, 217, 672),
    ("combine 672 of 1024 tokens", 9_633_792, 672, 217),
    ("dispatch 2688 of 4096 tokens", 38_535_168, 923, 2688),
    ("combine 2688 of 4096 tokens", 38_535_168, 2688, 923),
    ("reshard n=2048 columns to rows", 524_288, 1, 512),
    ("reshard n=2048 rows to columns", 524_288, 512, 1),
    ("reshard n=2048 fully sharded to columns", 262_144, 256, 1),
    ("reshard n=2048 experts to columns", 2_097_152, 4096, 1),
    ("reshard n=2048 columns to experts", 2_097_152, 1, 4096),
    ("reshard n=4096 columns to rows", 2_097_152, 1, 1024),
    ("reshard n=4096 rows to columns", 2_097_152, 1024, 1),
    ("reshard n=4096 fully sharded to columns", 1_048_576, 512, 1),
    ("reshard n=4096 experts to columns", 8_388_608, 8192, 1),
    ("reshard n=4096 columns to experts", 8_388_608, 1, 8192),
    ("reshard n=8192 columns to rows", 8_388_608, 1, 2048),
    ("reshard n=8192 rows to columns", 8_388_608, 2048, 1),
    ("reshard n=8192 fully sharded to columns", 4_194_304, 1024, 1),
    ("reshard n=8192 experts to columns", 33_554_432, 16384, 1),
    ("reshard n=8192 columns to experts", 33_554_432, 1, 16384),
    ("openmpi contig", 4, 1, 1),
    ("openmpi indexed_gap", 400, 11, 11),
    ("openmpi optimized_indexed_gap", 400, 11, 11),
    ("openmpi constant_gap", 64000, 80, 80),
    ("openmpi optimized_constant_gap", 64000, 80, 80),
    ("openmpi struct_constant_gap", 64000, 80, 80),
    ("openmpi struct_constant_gap_resized", 16, 1, 1),
    ("openmpi struct_merged_with_gap_resized", 17, 1, 1),
    ("openmpi complex_hvector", 49152, 2048, 2048),
    ("openmpi adv_single_iter_gap", 12, 1, 1),
    ("openmpi adv_zero_extent_overlap", 8, 1, 1),
    ("openmpi adv_neg_extent", 8, 1, 1),
    ("openmpi adv_mixed_promote", 32, 1, 1),
];

/// Case, extent and true extent of what is sent.
const EXTENTS: [(&str, i64, i64); 16] = [
    ("V n=512", (511 * 1024 + 512) * 8, (511 * 1024 + 512) * 8),
    ("X n=512", 8 * 512, 8 * 512 * 512),
    ("X n=16384", 131_072, 2_147_483_648),
    ("openmpi contig", 4, 4),
    ("openmpi indexed_gap", 440, 440),
    ("openmpi optimized_indexed_gap", 440, 440),
    ("openmpi constant_gap", 64632, 64632),
    ("openmpi optimized_constant_gap", 64632, 64632),
    ("openmpi struct_constant_gap", 64632, 64632),
    ("openmpi struct_constant_gap_resized", 24, 16),
    ("openmpi struct_merged_with_gap_resized", 24, 17),
    ("openmpi complex_hvector", 57340, 57340),
    ("openmpi adv_single_iter_gap", 24, 12),
    ("openmpi adv_zero_extent_overlap", 0, 8),
    ("openmpi adv_neg_extent", -8, 8),
    ("openmpi adv_mixed_promote", 32, 32),
];

fn all() -> Vec<Case> {
    let options = Options::default();
    families().iter().flat_map(|info| documented_cases(info.family, &options).unwrap()).collect()
}

#[test]
fn the_catalogue_is_the_literature() {
    let names: Vec<String> = all().into_iter().map(|case| case.name).collect();
    let documented: Vec<&str> = DOCUMENTED.iter().map(|row| row.0).collect();
    assert_eq!(names, documented);
}

#[test]
fn payloads_and_blocks_are_exact() {
    for (case, (name, payload, sent, received)) in all().iter().zip(DOCUMENTED) {
        assert_eq!(case.payload_bytes, payload, "{name}");
        assert_eq!(case.send.payload_bytes(), payload, "{name}");
        assert_eq!(case.recv.payload_bytes(), payload, "{name}");
        assert_eq!(case.expected_send_blocks, Some(sent), "{name}");
        assert_eq!(case.expected_recv_blocks, Some(received), "{name}");
        for (side, blocks) in [(&case.send, sent), (&case.recv, received)] {
            let layout = side.datatype.commit().unwrap();
            assert_eq!(layout.blocks(), blocks, "{name}");
            assert_eq!(layout.size(), payload, "{name}");
        }
    }
}

/// Every check of dtype's test kit, with one to three instances.
#[test]
fn short_ones_are_what_the_oracle_says() {
    let several = cases("openmpi", Some(5)).unwrap();
    let faces = ["face-x", "face-y", "face-z"].map(|name| cases(name, Some(12)).unwrap());
    let all = all().into_iter().chain(several).chain(faces.concat());
    let mut checked = 0;
    for case in all.filter(|case| case.send.buffer_bytes.max(case.recv.buffer_bytes) <= 100_000) {
        for side in [&case.send, &case.recv] {
            (1..=3).for_each(|count| check_datatype(&side.datatype, count, 0x1a70 + count));
        }
        checked += 1;
    }
    assert!(checked > 25, "{checked}");
}

#[test]
fn extents_are_exact() {
    let all = all();
    for (name, extent, true_extent) in EXTENTS {
        let case = all.iter().find(|case| case.name == name).unwrap();
        assert_eq!(case.send.datatype.extent(), extent, "{name}");
        assert_eq!(case.send.datatype.true_extent(), true_extent, "{name}");
        let layout = case.send.datatype.commit().unwrap();
        assert_eq!((layout.extent(), layout.true_extent()), (extent, true_extent), "{name}");
    }
}

#[test]
fn signatures_match() {
    for case in all() {
        let sent = case.send.datatype.signature().digest(case.send.count);
        let posted = case.recv.datatype.signature();
        posted.accepts_prefix(case.recv.count, &sent).unwrap_or_else(|error| {
            panic!("{}: {error}", case.name);
        });
    }
}

#[test]
fn buffers_cover_what_is_touched() {
    let several = cases("openmpi", Some(5)).unwrap();
    for case in all().into_iter().chain(several) {
        for side in [&case.send, &case.recv] {
            let (lo, hi) = side.touched().unwrap();
            let buffer = i64::try_from(side.buffer_bytes).unwrap();
            assert!(0 <= lo && lo < hi && hi <= buffer, "{}: {side:?}", case.name);
        }
    }
}
