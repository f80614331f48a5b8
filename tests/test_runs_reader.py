"""The reader of tables that people wrote: their cells, and tables that something has mangled."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.runs import cells, command, layout, reader, settings

GIVEN = Path(reader.__file__).with_name("published_runs.csv")
HEADER = ",".join(reader.COLUMNS)


def row(**values):
    base = {"id": "x", "model": "Qwen2.5-7B", "seq_len": "1024", "global_batch": "64", "micro_batch": "4", "precision": "bf16"}
    base |= {"layout": "dp=1", "n_gpus": "1", "gpu": "RTX 4090 24GB"} | values
    quoted = ('"' + base.get(column, "").replace('"', "'") + '"' for column in reader.COLUMNS)
    return reader.read_text(f"{HEADER}\n{','.join(quoted)}\n")[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("128 (memory)", 128),
        ("about 28", 28),
        ("1.24e8 + 3 value embedding tables", 1.24e8),
        ("1,024", 1024),
        ("7B", 7e9),
        ("15.4 (rank0 max allocated 15755 MiB; reserved 16334)", 15.4),
        ("not stated (1 likely)", None),
        ("not in repo (see paper)", None),
        ("", None),
        ("-", None),
        ("1e999", None),
        (None, None),
    ],
)
def test_the_leading_number_is_taken(text, value):
    assert cells.stated(text) == value


def test_a_layout_is_read_whatever_its_order_and_brackets():
    said = layout.parse("dp=2(DDP);tp=1;zero=1+weight sharding;offload=master,adam_m,quantised weights;recompute=ffn,norm")
    assert said.ways == {"dp": 2, "tp": 1} and said.zero == 1 and said.shard_weights
    assert said.offload == {"master", "adam_m", "quantised_weights"} and said.recompute == {"ffn", "norm"}
    assert layout.parse("tp=2, pp=4, zero=3(FSDP), offload=optimizer+params(cpu), recompute=full").offload == {
        "master",
        "adam_m",
        "adam_v",
        "weights",
    }
    assert layout.parse("dp=8;offload=none;recompute=none").messages == []
    assert "warp=9" in layout.parse("dp=2;warp=9").messages[0]


def test_what_a_row_leaves_open_is_assumed_and_said():
    one = row(seq_len="not in repo", micro_batch="not stated (12 default)", global_batch="", layout="dp=2", n_gpus="2")
    run = one.configuration
    assert (run.seq_len, run.micro_batch, run.global_batch) == (settings.SEQ_LEN, 12, 12 * 2 * settings.ACCUMULATE)
    said = " ".join(one.assumed)
    assert all(name in said for name in ("seq_len", "micro_batch 12", "global_batch", "zero 0", "recompute none"))


def test_rows_that_no_estimate_is_possible_for_say_why():
    assert "ResNet-50" in row(model="ResNet-50").unsupported
    assert "not in the table" in row(model="mystery").unsupported
    assert "RTX 4090" in row(gpu="Abacus 9000").unsupported
    assert row(model="mystery 3B").configuration.model.parameters == pytest.approx(3e9, rel=0.05)
    assert row(model="own", layers="12", hidden="768").configuration.model.layers == 12
    assert "heads do not fit" in row(heads="2M").unsupported
    assert "100,000" in row(layout="dp=99999999").unsupported


def test_unknown_columns_are_named_and_the_rest_is_answered():
    (one,) = reader.read_text("id,model,colour\na,Llama-2-7B,blue\n")
    assert "colour" in one.messages[0] and one.configuration.model.name == "Llama-2-7B"


def test_the_given_table_is_read_whole():
    rows = reader.read_file(GIVEN)
    assert len(rows) == 115 and all(one.configuration or one.unsupported for one in rows)
    assert sum(one.configuration is None for one in rows) == 27  # nets that are no transformers
    by = {one.id: one.configuration for one in rows if one.configuration}
    assert (by["INF-3.5B-8"].pp, by["INF-3.5B-8"].dp, by["INF-3.5B-8"].model.layers) == (4, 2, 16)
    assert by["INF-7B-16-48G"].machine.servers == 2 and by["INF-7B-16-48G"].machine.card.memory_bytes == 48 * 2**30
    assert by["TYL-1"].reduce_always and not by["TYL-2.3"].reduce_always and by["TYL-3"].window == 1024
    assert by["AAI-34B-qlora-fsdp"].base == "nf4" and by["AAI-7B-lora-ddp"].zero == 0
    stacks = {name: by[name].stack.name for name in ("LLMQ-1x-7B-fp8", "LF-4x-3B", "INF-3.5B-8", "NGPT-182-1x")}
    assert len(set(stacks.values())) == 4


def mangled(text, chance):
    """The text with bytes changed, lost, doubled, and whole cells replaced by what people and programs leave behind."""
    junk = ["NaN", "-1", "1e400", "∞", "0", "dp=", ";;=;", "inf", '"', ",", "\n", "\0", "9" * 400, "dp=0;tp=-2", "²", "zero=９"]
    pieces = []
    for character in text:
        lot = chance.random()
        if lot < 0.01:
            pieces.append(chance.choice(junk))
        elif lot < 0.02:
            pieces.append(chr(chance.randrange(32, 1000)))
        elif lot > 0.005:
            pieces.append(character)
    return "".join(pieces)


@pytest.mark.parametrize("seed", range(12))
def test_mangled_tables_are_answered_row_by_row_or_refused_in_one_sentence(seed):
    chance = random.Random(seed)
    lines = GIVEN.read_text().splitlines()
    text = "\n".join([lines[0], *(mangled(line, chance) for line in chance.sample(lines[1:], 12))])
    try:
        rows = reader.read_text(text)
    except ValueError as error:
        assert len(str(error).splitlines()) == 1
        return
    for one in rows:
        assert one.configuration is not None or one.unsupported


def test_mangled_rows_are_predicted_or_refused():
    chance, lines = random.Random(5), GIVEN.read_text().splitlines()
    cheap = ("LLMQ-1x-0", "LLMQ-1x-1", "TYL", "NGPT", "AAI-7B-lora-d", "LAM-BERT")
    chosen = [line for line in lines[1:] if line.startswith(cheap)]
    for one in reader.read_text("\n".join([lines[0], *(mangled(line, chance) for line in chosen)])):
        said = json.loads(json.dumps(command.answer(one), allow_nan=False))
        assert "unsupported" in said or said["step_time_s"] > 0


@pytest.mark.parametrize("content", [b"", b"  \n \n", b"a picture\0\1\2", b"just some words\nand more", b"id,model\n", None])
def test_what_is_no_table_is_refused_in_one_sentence(content, tmp_path, capsys):
    path = tmp_path / "runs.csv"
    if content is not None:
        path.write_bytes(content)
    assert command.main([str(path)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.strip().splitlines()) == 1 and "Traceback" not in said.err


def test_the_command_prints_a_json_line_a_row_with_its_error(tmp_path, capsys):
    lines = GIVEN.read_text().splitlines()
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([lines[0], lines[1], next(line for line in lines if line.startswith("LAM-NCF"))]))
    assert command.main([str(path), "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    for name in ("id", "step_time_s", "tokens_per_s", "mfu", "peak_mem_gb", "assumed", "interval", "warning"):
        assert name in first
    low, high = first["interval"]
    assert low < first["step_time_s"] < high and abs(first["error"]["step_time_s"]) < 0.15
    assert "no transformer" in second["unsupported"]
    assert command.main([str(path)]) == 0 and "| LLMQ-1x-0.5B-fp8" in capsys.readouterr().out


def test_the_software_is_recognised_by_its_settings_where_nothing_names_it():
    lines = GIVEN.read_text().splitlines()
    whole = reader.read_text("\n".join(lines))
    kept = [column for column in reader.COLUMNS if column not in ("id", "source_url", "notes")]
    rows = [",".join('"' + one.text(column).replace('"', "") + '"' for column in kept) for one in whole]
    for before, after in zip(whole, reader.read_text("\n".join([",".join(kept), *rows]))):
        if before.configuration:
            assert after.configuration.stack.name == before.configuration.stack.name, before.id


def test_a_reader_that_leaves_early_sees_no_traceback(tmp_path):
    file = tmp_path / "runs.csv"
    file.write_text("id,model\none,Llama-2-7B\n")
    command = [sys.executable, "-m", "labkit", "predict", str(file), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
