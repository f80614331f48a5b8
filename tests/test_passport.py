"""The passport of a machine: its sentence, its text and its card."""

from html.parser import HTMLParser

from machines import GIB, cpus, fake


def test_the_passport_says_where_ranks_run():
    assert fake(cores=2).mode.startswith("Ranks run on 2 CPU cores. To use GPUs,")
    assert fake(gpus=4).mode.startswith("Ranks run on 4 RTX 4090, one GPU each.")
    assert fake(gpus=1).mode == "2 or more ranks run on 2 CPU cores. The one-rank step is measured on the one GPU, the RTX 4090."
    assert "note says why" in fake(gpus=2, torch_has_cuda=False).mode
    assert "WSL2" in fake(system="Windows 11 AMD64").mode


def test_the_passport_as_text_is_aligned_and_complete():
    here = fake(
        gpus=3, cpus=cpus(128, threads=2), cpu_count=128, quota_cpus=2.0, ram_bytes=512 * GIB, cpu_name="Chip", python="3.12"
    )
    lines = str(here).splitlines()
    assert all(line[9] == " " and line[10] != " " for line in lines)
    assert "GPU       cuda:0 to cuda:2: NVIDIA GeForce RTX 4090, 24.0 GiB each" in lines
    assert "cores     2 CPU cores for ranks: 64 physical, 128 CPUs allowed, quota 2 CPUs" in lines
    assert "memory    512.0 GiB" in lines
    assert "note      cgroup quota: 2 of 128 CPUs" in lines


class Balance(HTMLParser):
    """Collects the text of a page and fails on a tag closed out of order."""

    def __init__(self, page):
        super().__init__()
        self.open, self.text = [], []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_card_holds_the_same_text_and_escapes_it():
    here = fake(gpus=1, cpu_name="<b>Chip</b> & Co", quota_cpus=1.0)
    text = Balance(here._repr_html_()).text
    assert "<b>Chip</b> & Co" in text
    for line in str(here).splitlines()[1:]:
        assert line[10:] in text


def test_the_card_stays_small_on_a_large_host():
    assert len(fake(cores=512)._repr_html_()) < 4000
