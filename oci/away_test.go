package oci

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/tsugiki/tsugiki/api"
	"github.com/tsugiki/tsugiki/internal/sys/lock"
)

// A registration serves again for the same container that asks for the same, while no agent runs.
func TestRegisterAgain(t *testing.T) {
	const id, asked = "0123", "the same"
	for name, test := range map[string]struct {
		agentAtEnd, agentSince bool // runs when the container ends; has started since
		again                  state
		want                   bool
	}{
		"same":               {again: state{ID: id, Asked: asked}, want: true},
		"asks for more":      {again: state{ID: id, Asked: "more"}},
		"other container":    {again: state{ID: "other", Asked: asked}},
		"with an agent":      {agentAtEnd: true, again: state{ID: id, Asked: asked}},
		"agent since":        {agentSince: true, again: state{ID: id, Asked: asked}},
		"state of a version": {again: state{ID: id}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			w := &Wrapper{socket: filepath.Join(dir, "agent.sock"), agent: api.Dial(filepath.Join(dir, "agent.sock"))}
			lockFile := filepath.Join(dir, "agent.lock")
			if err := os.WriteFile(lockFile, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			ended := &state{ID: id, Name: "web", Asked: asked, Answer: grafted, path: w.statePath(command{id: id})}
			if err := ended.save(); err != nil {
				t.Fatal(err)
			}
			agent := func() *os.File {
				f, err := lock.Open(lockFile)
				if err != nil {
					t.Fatal(err)
				}
				return f
			}
			if test.agentAtEnd {
				defer agent().Close()
			}
			if err := w.undo(ended); err != nil {
				t.Error(err)
			}
			if st, err := w.loadState(command{id: id}); st != nil || err != nil {
				t.Errorf("the state after the end: %v, %v", st, err)
			}
			if test.agentSince {
				if err := os.RemoveAll(api.EndedDir(dir)); err != nil {
					t.Fatal(err)
				}
			}
			test.again.path = w.statePath(command{id: test.again.ID})
			checkAgain(t, w, &test.again, test.want)
			checkAgain(t, w, &test.again, false) // it has been used
		})
	}
}

func checkAgain(t *testing.T, w *Wrapper, st *state, want bool) {
	t.Helper()
	note := filepath.Join(api.AgainDir(filepath.Dir(w.socket)), grafted.Name)
	_ = os.Remove(note)
	again, err := w.registerAgain(st)
	if again != want || err != nil {
		t.Errorf("registered again: %v, %v; want %v", again, err, want)
	}
	text, err := os.ReadFile(note)
	if want && (string(text) != st.ID || st.Answer.Token != grafted.Token) || !want && !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the note is %q, %v; the token is %q", text, err, st.Answer.Token)
	}
}
