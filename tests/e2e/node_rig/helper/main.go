// Helper of a node on a described machine. Called as rig-oci it stands before runc; `rig kernel` does what a kernel would do
// for the cgroup tree of the described machine.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	switch {
	case filepath.Base(os.Args[0]) == "rig-oci":
		becomeRunc(os.Args[1:])
	case len(os.Args) == 2 && os.Args[1] == "kernel":
		keepKernel()
	}
	fmt.Fprintln(os.Stderr, "usage: rig kernel, or rig-oci with the words of runc")
	os.Exit(2)
}
