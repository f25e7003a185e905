"""What the words of the domain mean: frozen values and protocols, standard library only.

Nothing here may know Spark, a database, a file format or the network.
"""
