"""Final schedules are run as a chip would pass them, and a program's instructions are added up."""

from __future__ import annotations

from pathlib import Path

import pytest

from xla_cache.schedules.account import account, operations, read
from xla_cache.schedules.instructions import entry
from xla_cache.schedules.scalars import Program, run
from xla_cache.schedules.sent import Collective, Collectives, Links, Passage

LOOP = """
     0   :  { %s10_s0 = inlined_call_operand.hbm [shape: bf16[64,128], index: 0, kind: input, shape index: {}] /* operand 0 */ }
   0x1   :  { %s11_s1 = smov 0 /* copy for cssa */ }
   0x2 LB: > { %s12_s2 = sadd.s32 1, %s13_s1  ;;  %s13_s1 = sphi %s11_s1, %s12_s1 /* phi copy */ } /* Start region 4 */
   0x3   : > { %p14_p0 = scmp.lt.s32.totalorder %s12_s2, 4  ;;  %s15_s3 = scalar_lea.hbm %s10_s0, %s13_s1 }
   0x4   : > { %p16_p1 = scmp.eq.s32.totalorder %s13_s1, 1 /* a loop's second pass */ }
   0x5   : > { %17 = dma.hbm_to_vmem [thread:$0]  (!%p16_p1), /*hbm=*/%s15_s3, 10, [#allocation1], [#allocation2] /*
hlo: fusion */ }
   0x6   : > { %18 = sbr.rel (%p14_p0) target = $region4  ;;  %s12_s1 = smov %s12_s2 }
   0x7   :  {}
   0x8   :  {}
   0x9   :  {}
   0xa   :  {} /* End region 4 */
   0xb   :  { %19 = dma.done.wait [#allocation2], 30 }
   0xc   :  { %20 = vsyncadd [#allocation2], 4294967266  ;;  %v21_v0 = vmov 0.0 }
"""
"""Four passes of nine bundles, of which three copy 320 bytes."""
BRANCH = """
     0   :  { %s1_s1 = inlined_call_operand.vmem [shape: s32[2], index: 0, kind: input, shape index: {}] /* operand 0 */ }
   0x1   :  { %s2_s2 = sshll.u32 %s1_s1, 4  ;;  %s3_s3 = smov [#allocation3]  ;;  %s2_s2 = int_to_ptr.vmem %s2_s2 }
   0x2   :  { %4 = dma.vmem_to_smem /*vmem=*/%s2_s2, /*size_in_granules=*/16, /*smem=*/%s3_s3, /*dst_syncflagno=*/[#allocation4] }
   0x3   :  { %s5_s4 = sld [smem:[#allocation3 + $0x1]] }
   0x4   :  { %p6_p0 = scmp.lt.u32.totalorder %s5_s4, 5 }
   0x5   :  { %7 = sbr.rel (%p6_p0) target = $region9 }
   0x6   :  {}
   0x7   :  {}
   0x8   :  {}
   0x9   :  {}
   0xa   :  { %v8_v0 = vmov 0.0 }
   0xb   :  { %v9_v0 = vmov 0.0 }
   0xc PF:  { %s10_s5 = smov 0 } /* Start/End empty region 9 */
"""


def test_a_loop_is_passed_as_often_as_it_says() -> None:
    passed = run(Program.parse(LOOP), bytes_per_cycle=1000)
    assert (passed.bundles, passed.read_bytes, passed.written_bytes, passed.unknown) == (2 + 4 * 9 + 2, 960, 0, 0)
    assert passed.cycles == pytest.approx(passed.bundles)


def test_a_copy_with_strides_says_where_it_goes_in_a_comment() -> None:
    plain = "dma.hbm_to_vmem [thread:$0]  (!%p16_p1), /*hbm=*/%s15_s3, 10, [#allocation1], [#allocation2] /*"
    strided = (
        "dma.general [thread:$0]  (!%p16_p1), /*src=*/%s15_s3, 10, [#allocation1], [#allocation2] /* hbm-to-vmem */ /*"
    )
    assert plain in LOOP
    text = LOOP.replace(plain, strided)
    assert run(Program.parse(text), bytes_per_cycle=2) == run(Program.parse(LOOP), bytes_per_cycle=2)


def test_slow_copies_are_waited_for() -> None:
    passed = run(Program.parse(LOOP), bytes_per_cycle=2)
    assert passed.cycles == pytest.approx(2 + 4 + 960 / 2 + 1)  # the first begins in the loop's fourth bundle


@pytest.mark.parametrize(
    ("given", "bundles", "unknown"), [({0: [9, 4]}, 11, 0), ({0: [9, 5]}, 13, 0), ({0: [9, -1]}, 13, 0), ({}, 13, 1)]
)
def test_branches_on_operands(given: dict[int, list[int]], bundles: int, unknown: int) -> None:
    passed = run(Program.parse(BRANCH), bytes_per_cycle=1, operands=given)
    assert (passed.bundles, passed.unknown) == (bundles, unknown)


@pytest.mark.parametrize(("number", "bundles"), [(4, 8), (5, 10)])
def test_a_branch_on_an_operand_in_no_memory(number: int, bundles: int) -> None:
    operand = "%s5_s4 = inlined_call_operand.<no memory space> [shape: s32[1], index: 0, kind: input]"
    text = f"     0   :  {{ {operand} }}\n" + BRANCH[BRANCH.index("   0x4 ") :]
    assert run(Program.parse(text), bytes_per_cycle=1, operands={0: [number]}).bundles == bundles


def test_a_loop_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xla_cache.schedules.scalars.MOST_BUNDLES", 1000)
    with pytest.raises(ValueError, match="has not ended after 1000 bundles"):
        run(Program.parse(LOOP.replace("%s12_s2, 4 ", "%s11_s1, 4 ")), bytes_per_cycle=1)


HLO = """HloModule step, num_partitions=4

%fused (p: bf16[8]) -> bf16[8] {
  ROOT %inside = bf16[8]{0} negate(%p)
}

%async (p: bf16[8]) -> bf16[8] {
  ROOT %inside = bf16[64]{0} reduce-scatter(%p), replica_groups=[1,4]<=[4]
}

ENTRY %main {
  %x = bf16[64,128]{1,0:T(8,128)} parameter(0)
  %copy-start = (bf16[64,128]{1,0:T(8,128)S(1)}, bf16[64,128]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%x)
  %async-start = bf16[64]{0} async-start(%x), calls=%async
  %fusion.7 = bf16[64]{0} fusion(%x), calls=%fused, metadata={op_name="jit(step)/op:matmul/dot_general"}
  %copy-done = bf16[64,128]{1,0:T(8,128)S(1)} copy-done(%copy-start)
  %write_kv.2 = bf16[64]{0} custom-call(%x), custom_call_target="tpu_custom_call", KV
  %async-done = bf16[64]{0} async-done(%async-start)
  %all-reduce.1 = bf16[64]{0} all-reduce(%x), to_apply=%fused
  ROOT %sort.3 = bf16[64]{0} sort(%x)
}
""".replace(
    "KV",
    'operand_layout_constraints={s32[2]{0}, bf16[64,128]{1,0}}, metadata={op_name="jit(step)/op:write_kv/pallas_call"}',
)


def test_a_program_is_added_up_by_kind(tmp_path: Path) -> None:
    (tmp_path / "123-fusion.1-66-final_bundles.txt").write_text(LOOP)
    (tmp_path / "124-write_kv.2-03-final_bundles.txt").write_text(BRANCH)
    (tmp_path / "124-write_kv.2-02-schedule-analysis_final_bundles.txt").write_text("not one")
    equal = "key:fusion.1\nordinal:0\nequivalent_hlos[size=2]:\n  fusion.1\n  fusion.7\nkey:sort.3\nordinal:1\n"
    (tmp_path / "125-TLP-00-deduplication-map.txt").write_text(equal + "equivalent_hlos[size=0]:\n")
    asked = []

    def operands(kernel: str, before: int, shapes: object) -> dict[int, list[int]]:
        asked.append((kernel, before, shapes))
        return {0: [0, 4]}

    def sending(one: Collective) -> Passage:
        return Passage(one.bytes * (10 if one.kind == "all-reduce" else 1))

    found = account(HLO, read(tmp_path), bytes_per_cycle=100, flops_per_cycle=1e9, operands=operands, sending=sending)
    copy = 64 * 128 * 2
    beside = 40 - 960 / 100  # of the bandwidth that the product leaves
    assert found["by_kind"] == pytest.approx(
        {"products": 40, "cache writes": 11, "waiting for copies": copy / 100 - beside}, abs=0.01
    )
    assert found["cycles"] == pytest.approx(sum(found["by_kind"].values()))
    assert found["moved_bytes"] == copy + 960
    assert found["without_schedule"] == {"sort": 1}
    collectives = [("all-reduce", 128, 4, False), ("reduce-scatter", 512, 4, True)]
    assert [
        tuple(one[name] for name in ("kind", "bytes", "devices", "asynchronous"))
        for one in found["sent"]["collectives"]
    ] == collectives
    hidden = 40 + (copy / 100 - beside) + 11  # what passes until it is waited for
    assert (found["sent"]["cycles"], found["sent"]["hidden"]) == (1280 + 512, pytest.approx(hidden, abs=0.01))
    assert asked == [("write_kv", 0, [(2,), (64, 128)])]


LEFT = """HloModule step

ENTRY %main {
  %x = bf16[64,128]{1,0:T(8,128)} parameter(0)
  %begin.1 = (bf16[64,128]{1,0:T(8,128)}, bf16[64]{0:S(1)}, s32[3]{0:S(2)}) custom-call(%x), custom_call_target="tpu_custom_call"
  %same = bf16[64,128]{1,0:T(8,128)} get-tuple-element(%begin.1), index=0
  %room = bf16[64]{0:S(1)} get-tuple-element(%begin.1), index=1
  %flags = s32[3]{0:S(2)} get-tuple-element(%begin.1), index=2
  %fusion.7 = bf16[64]{0} fusion(%same), calls=%fused
  ROOT %use.1 = bf16[64]{0} custom-call(%room, %flags, %fusion.7), custom_call_target="tpu_custom_call"
}
"""


def test_what_a_kernel_leaves_under_way_is_waited_for_by_the_one_that_takes_its_semaphores() -> None:
    begin = LOOP[: LOOP.index("   0xb ")]  # waits for nothing
    texts = {"begin.1": begin, "fusion.7": BRANCH, "use.1": BRANCH}
    found = account(LEFT, texts, bytes_per_cycle=2, flops_per_cycle=1e9, operands=lambda *asked: {0: [0, 4]})
    waited = 960 / 2 - 38 - 13  # behind itself and what does not need it
    assert found["by_kind"] == pytest.approx({"rest": 38 + 13 + 11, "waiting for copies": waited}, abs=0.01)
    assert found["moved_bytes"] == 960


def test_what_is_started_has_its_own_links() -> None:
    one, other = (Collective("collective-permute", 100, 4, pairs) for pairs in (((0, 1), (2, 3)), ((0, 2), (1, 3))))
    links = Links(lambda sent: Passage(sent.bytes, frozenset(sent.pairs)))
    links.start("first", [one])
    links.start("again", [one])
    links.start("other", [other])
    links.let_pass(60)
    assert links.wait("other") == 40, "beside the first"
    assert links.wait("first") == 0
    links.let_pass(30)
    assert links.within([Collective("all-reduce", 50, 4)], own_cycles=10) == pytest.approx(70 + 50 - 10)
    links.let_pass(1000)
    assert links.described()["cycles"] == 60 + 40 + 30 + 120
    assert links.described()["hidden"] == 60 + 30 + 10
    counts = {(one["kind"], one["asynchronous"]): one["count"] for one in links.described()["collectives"]}
    assert counts == {("collective-permute", True): 3, ("all-reduce", False): 1}


def test_a_permutation_names_its_pairs() -> None:
    text = HLO.replace("sort(%x)", "collective-permute(%x), source_target_pairs={{0,1},{1,0},{2,3},{3,2}}, metadata={}")
    [instruction] = [found for found in entry(text) if found.opcode == "collective-permute"]
    [sent] = Collectives(text, {}).of(instruction)
    assert (sent.bytes, sent.pairs) == (128, ((0, 1), (1, 0), (2, 3), (3, 2)))


def test_the_operations_of_products() -> None:
    product = """
  %p0 = bf16[2048,4096]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  %p1 = bf16[1024,4096]{1,0:T(8,128)(2,1)} parameter(1)
  %dot.1 = f32[2048,1024]{1,0:T(8,128)} convolution(%p0, %p1), dim_labels=bf_oi->bf
  ROOT %convert = bf16[2048,1024]{1,0} convert(%dot.1)
"""
    assert operations(product) == 2 * 2048 * 4096 * 1024
    assert operations(product.replace("bf16[1024", "s8[1024")) == 0
    assert operations("") == 0
