package enforcer

import "testing"

// What is prepared serves container after container, and goes when it is let go.
func TestPrepare(t *testing.T) {
	bpfFileSystem(t)
	letGo, err := Prepare()
	if err != nil {
		t.Fatal(err)
	}
	kept := sets.current
	for range 2 {
		s, _, err := takeNumber()
		if err != nil {
			t.Fatal(err)
		}
		if s != kept {
			t.Error("a container got other programs than those that are kept")
		}
		if err := s.leave(); err != nil {
			t.Error(err)
		}
	}
	if sets.current != kept {
		t.Error("they went with the last container")
	}
	if err := letGo(); err != nil {
		t.Error(err)
	}
	if sets.current != nil {
		t.Error("they are kept though nobody wants them")
	}
}
