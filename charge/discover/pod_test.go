package discover

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A log belongs to the container whose name is in its path, below the pod's directory.
func TestLoggedTo(t *testing.T) {
	top := t.TempDir()
	all := map[string]*found{"engine": {}}
	for id, of := range map[string][2]string{
		"1": {"pod", "web"}, "2": {"pod", "web.old"}, "3": {"pod", "db"}, "4": {"other", "web"},
	} {
		dir := filepath.Join(top, of[0])
		if err := os.MkdirAll(filepath.Join(dir, of[1]), 0o700); err != nil {
			t.Fatal(err)
		}
		logs, _, err := identify(dir)
		if err != nil {
			t.Fatal(err)
		}
		all[id] = &found{Container: Container{ID: id}, pod: pod{logs, of[1]}}
	}
	if err := os.Symlink(filepath.Join(top, "pod"), filepath.Join(top, "link")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]struct {
		ids       []string
		directory bool
	}{
		"pod/web/0.log":      {[]string{"1"}, true},
		"pod/web.old/0.log":  {[]string{"2"}, true},
		"link/web/3.log":     {[]string{"1"}, true},
		"other/web/0.log":    {[]string{"4"}, true},
		"pod/db.log":         {[]string{"3"}, false},
		"pod/db.1.log":       {[]string{"3"}, false},
		"pod/web.old.log":    {[]string{"1", "2"}, false}, // it counts for neither
		"pod/web/0.txt":      {nil, false},
		"pod/database.log":   {nil, false},
		"pod/nobody/0.log":   {nil, false},
		"other/db/0.log":     {nil, false},
		"pod/web/more/0.log": {nil, false},
		"none/web/0.log":     {nil, false},
	} {
		some, directory := loggedTo(top+"/", path, byLogs(all))
		var ids []string
		for _, f := range some {
			ids = append(ids, f.ID)
		}
		slices.Sort(ids)
		if !slices.Equal(ids, want.ids) || directory != want.directory {
			t.Errorf("%s: containers %q, directory %v; want %q, %v", path, ids, directory, want.ids, want.directory)
		}
	}
}
