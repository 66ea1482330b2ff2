// Package topology stands in for a module of nri-plugins that is not published: where devices are. The containers of
// the measurement have no devices, so it knows of none.
package topology

import (
	"errors"
	"maps"
)

// Hint says where a device is.
type Hint struct{ Provider, CPUs, NUMAs, Sockets string }

// Hints are those of several devices by name.
type Hints map[string]Hint

var errUnknown = errors.New("no device is known")

func FindSysFsDevice(string) (string, error)                    { return "", errUnknown }
func FindGivenSysFsDevice(string, int64, int64) (string, error) { return "", errUnknown }
func NewTopologyHints(string) (Hints, error)                    { return nil, errUnknown }
func SetLogger(any)                                             {}
func SetSysRoot(string)                                         {}

// MergeTopologyHints returns both; the second wins.
func MergeTopologyHints(one, other Hints) Hints {
	all := maps.Clone(one)
	if all == nil {
		all = Hints{}
	}
	maps.Copy(all, other)
	return all
}

// ResolvePartialHints has nothing to add to hints that name CPUs.
func (Hints) ResolvePartialHints(func(string) string) {}
