import convoy
import pytest
from convoy import compilation_cache, cpu
from convoy.cli import doctor


def test_tells_versions_extras_devices_and_kernels(capsys):
    doctor.main([])
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown["convoy"].startswith(convoy.__version__)
    assert shown["devices"].startswith("4 x cpu")
    assert shown["serving"].startswith("installed")
    assert "cpu" in shown


def test_tells_how_the_cpu_computes_in_16_bits(monkeypatch, capsys):
    status = cpu.Status(active=True, native=True, half_instructions=("bfloat16",))
    monkeypatch.setattr(cpu, "status", lambda: status)
    doctor.main([])
    assert (
        "bfloat16 with instructions; float16 computed in float32; precision='auto' is "
        "'mixed_bfloat16'" in capsys.readouterr().out
    )


def test_kernels_that_are_off_are_wrong(monkeypatch, capsys):
    monkeypatch.setenv(cpu.registry.VARIABLE, "0")
    assert doctor.main([]) == 1
    assert "problems       convolutions are slow: CONVOY_CPU_KERNELS=0" in capsys.readouterr().out


def test_a_cache_that_cannot_be_written_is_wrong(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch(mode=0o400)
    monkeypatch.setattr(compilation_cache, "active", lambda: str(file / "programs"))
    assert any("cannot be written" in problem for problem in doctor.problems())


def test_what_is_missing_of_an_extra_is_named_with_the_command(monkeypatch):
    requires = ["jax>=0.10", "surely-missing>=1; extra == 'serving'", "numpy; extra == 'serving'"]
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: requires)
    rows = dict(doctor.properties())
    assert rows["serving"].startswith(
        "without surely-missing: pip install 'keras-convoy[serving]' ("
    )
    assert rows["plot"].startswith("installed")


def test_takes_no_flags(capsys):
    with pytest.raises(SystemExit):
        doctor.main(["--fix"])
    assert "--fix is not a flag." in capsys.readouterr().err
