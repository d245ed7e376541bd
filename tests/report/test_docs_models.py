"""The page of worked examples by kind of layer: its numbers by hand, and twins that differ in one thing only."""

from parlay.estimate.counts import parameters
from parlay.models.load import load_model
from parlay.models.spec import GroupedAttention
from parlay.report import docs_models as page


def test_windows_by_hand():
    text = page.windows()
    assert f"{1024 - 1024 * 1023 / (2 * 32768):,.1f} keys" in text
    assert f"{2 * (1024 - 1024 * 1023 / 65536) * 32 * 256 / 1e6:,.2f} MFLOPs" in text
    twin = page.without_windows(load_model("gemma-3-27b"))
    assert all(k.mixer.window is None for k in twin.kinds.values())
    assert parameters(twin).total == parameters(load_model("gemma-3-27b")).total


def test_latent_attention_by_hand():
    weights = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168 + 1536 + 512
    text = page.latent_attention()
    assert f"= {weights:,}." in text
    assert f"{61 * 576 * 2:,} B" in text
    assert f"{61 * 2 * 128 * 128 * 2:,} B" in text


def test_a_shared_expert_is_computed_but_not_sent():
    text = page.shared_experts()
    forward = 2 * 9 * 3 * 7168 * 2048 / 1e6
    assert text.count(f"{forward:,.2f}") == 2
    assert f"{8 * 4096 * 7168 * 2 * 63 / 64 / 2**20:.0f} MiB" in text
    assert f"{9 * 4096 * 7168 * 2 * 63 / 64 / 2**20:.0f} MiB" in text


def test_prediction_by_hand():
    model = load_model("deepseek-v3")
    layer = parameters(model).layers[model.mtp_kind][1]
    assert f"{layer + 2 * 7168**2 + 3 * 7168:,}" in page.prediction()


def test_hybrid_layers_by_hand():
    text = page.hybrid()
    assert f"{7 * 8192 * 128 / 1e6:,.2f} MFLOPs" in text
    twin = page.with_attention_for_mamba(load_model("nemotron-h-8b"))
    assert sum(isinstance(twin.kinds[n].mixer, GroupedAttention) for n in twin.layer_names()) == 24 + 4


def test_experts_on_a_latent_by_hand():
    text = page.latent_experts()
    assert f"{512 * 1024 * 2688:,} weights" in text
    assert f"{512 * 4096 * 2688:,}" in text
    assert (
        parameters(page.without_latent(load_model("nemotron-3-super-120b-a12b"))).total
        > 3 * parameters(load_model("nemotron-3-super-120b-a12b")).total
    )


def test_every_kind_has_a_whole_step_of_its_own():
    rows = [line.split(" | ") for line in page.whole_steps().splitlines() if line.startswith("| ")][2:]
    assert len(rows) == 6
    assert all(own != plain.rstrip(" |") for *_, own, plain in rows)
