from relume.cli import main

main()
