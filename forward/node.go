package forward

import (
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/tsugiki/tsugiki/internal/netns"
)

// Owner is an attachment of a container to a network. The alias of the host's end of its link
// says so (ip-link(8)): programs find it there as long as there is the link.
type Owner struct{ Network, Container, Interface string }

const aliasPrefix = "tsugiki-cni"

// Alias is the link's alias.
func (o Owner) Alias() string {
	return strings.Join([]string{aliasPrefix, o.Network, o.Container, o.Interface}, " ")
}

// OwnerOf reads a link's alias.
func OwnerOf(alias string) (Owner, bool) {
	words := strings.Split(alias, " ")
	if len(words) != 4 || words[0] != aliasPrefix {
		return Owner{}, false
	}
	return Owner{words[1], words[2], words[3]}, true
}

// Entry is a pod with its link's name and what it has sent.
type Entry struct {
	Pod
	Owner Owner  // zero if the link's alias does not say
	Link  string // empty if the link has gone
	Counts
	Fault string // the fault of its programs; empty if there is none
}

// Entries lists the pods in the order of their links. A pod that is removed meanwhile is left out.
func (t *Table) Entries() ([]Entry, error) {
	pods, err := t.Pods()
	if err != nil {
		return nil, err
	}
	links, err := netns.Dump(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	byIndex := map[int]*netlink.LinkAttrs{}
	for _, l := range links {
		byIndex[l.Attrs().Index] = l.Attrs()
	}
	var list []Entry
	for _, p := range pods {
		e := Entry{Pod: p}
		if e.Counts, err = t.Counts(p.Device); err != nil {
			if ignore(err, ErrUnknown) == nil {
				continue
			}
			return nil, err
		}
		if l := byIndex[p.Device]; l == nil {
			e.Fault = "the link has gone"
		} else {
			e.Link = l.Name
			e.Owner, _ = OwnerOf(l.Alias)
			if err := t.Attached(p); err != nil {
				e.Fault = err.Error()
			}
		}
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b Entry) int { return a.Device - b.Device })
	return list, nil
}

// Find returns the pod of a link's name, or of the only container whose id begins so.
func Find(entries []Entry, name string) (Entry, error) {
	var found []Entry
	for _, e := range entries {
		if e.Link == name && name != "" || e.Owner.Container == name && name != "" {
			return e, nil
		}
		if name != "" && strings.HasPrefix(e.Owner.Container, name) {
			found = append(found, e)
		}
	}
	switch len(found) {
	case 0:
		return Entry{}, fmt.Errorf("%q: %w; tsugiki forward show lists them", name, ErrUnknown)
	case 1:
		return found[0], nil
	}
	return Entry{}, fmt.Errorf("%q is the beginning of %d containers' ids; write more of it, or the link", name, len(found))
}
