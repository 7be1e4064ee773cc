package accounts

import (
	"cmp"
	"slices"

	"github.com/tsugiki/tsugiki/charge/enforce"
	"github.com/tsugiki/tsugiki/charge/shared"
)

// Shown is the present state of an account.
type Shown struct {
	enforce.Status
	Name, ID, Group, Version string
	By                       map[string]string // how a source is charged, where not by quota
}

// Shared is a daemon whose time is divided among containers.
type Shared struct {
	shared.Process
	Name string
}

// Show lists accounts in the order of their names, helpers by id and shared daemons by pid.
func (a *Accounts) Show() ([]Shown, []Attached, []Shared) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var shown []Shown
	for _, acct := range a.byGroup {
		s := Shown{
			Status: acct.Status(), Name: acct.names[0], ID: acct.id, Group: acct.group.Path(), Version: acct.group.Version(),
			By: map[string]string{},
		}
		for source, by := range acct.by {
			s.By[source] = by
		}
		shown = append(shown, s)
	}
	var attached []Attached
	names := map[int]string{}
	for _, h := range a.helpers {
		attached = append(attached, h.Attached)
		if h.Shared {
			names[h.PID] = h.Source
		}
	}
	var daemons []Shared
	if a.daemons != nil {
		for _, p := range a.daemons.Processes() {
			daemons = append(daemons, Shared{p, names[p.PID]})
		}
	}
	slices.SortFunc(shown, func(x, y Shown) int { return cmp.Compare(x.Name, y.Name) })
	slices.SortFunc(attached, func(x, y Attached) int { return cmp.Compare(x.ID, y.ID) })
	slices.SortFunc(daemons, func(x, y Shared) int { return cmp.Compare(x.PID, y.PID) })
	return shown, attached, daemons
}
