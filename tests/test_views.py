"""When a picture is drawn: at once where one will come, then with new records only, and marked at the end of a failed run."""

from types import SimpleNamespace

import pytest

from labkit import views


class FakePicture:
    """Keeps what it is asked to show; always due."""

    def __init__(self, text):
        self.shown = []

    def due(self, now, *, busy):
        return True

    def update(self, draw):
        self.shown.append(draw())


class Counted(views.View):
    def figure(self, session, failed=None):
        return len(session.records), failed


class CountedRecords(Counted, views.RecordsView):
    pass


@pytest.fixture(autouse=True)
def notebook(monkeypatch):
    monkeypatch.setattr(views, "in_notebook", lambda: True)
    monkeypatch.setattr(views, "Picture", FakePicture)


@pytest.fixture
def session():
    return SimpleNamespace(records=[], plan={"cores": [(0,)]})


def test_the_first_frame_is_drawn_before_there_are_records_and_further_ones_with_new_records(session):
    view = Counted()
    assert view.tick(session)
    assert not view.tick(session)
    session.records.append({"loss": 1.0})
    assert view.tick(session)
    assert not view.tick(session)
    view.close(session, None)
    assert view.picture.shown == [(0, None), (1, None), (1, None)]


def test_a_run_that_fails_before_any_record_leaves_its_picture_marked(session):
    view = Counted()
    view.tick(session)
    view.close(session, ValueError("no"))
    assert view.picture.shown[-1] == (0, "no")


def test_ranks_that_log_nothing_get_no_picture(session):
    view = CountedRecords()
    assert not view.tick(session)
    view.close(session, None)
    assert view.picture is None
    session.records.append({"loss": 1.0})
    assert view.tick(session)
    assert view.picture.shown == [(1, None)]
